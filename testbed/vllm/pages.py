"""The pages of vLLM's KV cache: how large they are, and what a sequence takes of them."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from testbed.core.errors import InputError
from testbed.core.layers import KvGroup, layers_of_page
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec
from testbed.vllm.releases import Release

CHUNKS = "chunks"


@dataclass(frozen=True)
class Pages:
    """Pages of one size, which the groups of a model share (OnePageSize has the rule).

    page_bytes: on each GPU. tokens_under_way: those that may be scheduled and have not run, before
    a block outside a window is freed. windows: of each column of a group, the tokens that it reads,
    None for all and 0 for a state, of which a sequence has state_pages. block_sizes: tokens of each
    column's page, more than block_size if its layers cache fewer bytes a token. state_pages:
    those of a sequence in a column of states, 2 if prefixes are cached, one of which is kept as
    it was. num_shards: GPUs among which the tokens of full attention are divided (decode context
    parallelism). draft_pages: more of them for drafts, one for each, because the state of a
    rejected draft must not replace the last accepted one. more_pages: of a sequence, whatever its
    length, for what the indexer has not pooled yet. keeps_each_state: a sequence has a page of
    state for each block. chunk: tokens that the last num_chunk_columns read, of chunked attention.
    """

    page_bytes: int
    block_size: int
    windows: tuple[int | None, ...]
    block_sizes: tuple[int, ...]
    tokens_under_way: int = 0
    state_pages: int = 1
    draft_pages: int = 0
    more_pages: int = 0
    keeps_each_state: bool = False
    chunk: int | None = None
    num_chunk_columns: int = 0
    num_shards: int = 1

    @property
    def is_grouped(self) -> bool:
        """True if some layers store less than all tokens."""
        return self.windows != (None,) or self.chunk is not None

    @property
    def num_columns(self) -> int:
        """The groups of vLLM's manager."""
        return len(self.windows) + self.num_chunk_columns

    def num_tokens(self, num_blocks: int) -> int:
        """vLLM's "GPU KV cache size" in releases that log the blocks of one group."""
        return num_blocks // self.num_columns * self.block_size * self.num_shards

    def of_sequence(self, num_tokens: int) -> int:
        """Pages of a sequence that is so long (vLLM's max_memory_usage_bytes)."""
        columns = zip(self.windows, self.block_sizes, strict=True)
        pages = sum(self._of_column(window, size, num_tokens) for window, size in columns)
        return pages + self._of_chunks(num_tokens) + self.more_pages

    def _of_chunks(self, num_tokens: int) -> int:
        """Pages of the columns of chunked attention, which hold a chunk and what is under way."""
        if self.chunk is None:
            return 0
        read = min(self.chunk + self.tokens_under_way, num_tokens)
        return self.num_chunk_columns * ceil_div(read, self.block_size)

    def concurrency(self, num_blocks: int, num_tokens: int) -> float:
        """vLLM's maximum concurrency: how many sequences so long the pages are enough for."""
        return num_blocks / self.of_sequence(num_tokens)

    def longest(self, num_blocks: int, most: int) -> int:
        """Tokens of the longest sequence that num_blocks pages hold, at most `most`; 0 if none
        fits.
        """
        return bisect_right(range(1, most + 1), num_blocks, key=self.of_sequence)

    def _of_column(self, window: int | None, block_size: int, num_tokens: int) -> int:
        if window == 0 and self.keeps_each_state:
            return ceil_div(num_tokens, block_size) + self.draft_pages
        if window == 0:
            return self.state_pages + self.draft_pages
        if window is None:
            return ceil_div(ceil_div(num_tokens, self.num_shards), block_size)
        read = min(window - 1 + self.tokens_under_way, num_tokens)
        return ceil_div(read, block_size) + 1  # a window may begin within a block


def columns_of(model: ModelSpec) -> tuple[int, list[tuple[str, int]]]:
    """The layers that share a block of a column, and the columns of each kind of layers, by the
    letter of its kind (testbed/core/layer_order.py).
    """
    groups = _groups(model)
    per_column = layers_of_page(groups)
    letters = {"window": "w", "state": "s", CHUNKS: "c"}
    return per_column, [
        (letters.get(group.name, "f"), ceil_div(group.num_layers, per_column)) for group in groups
    ]


def pages_of(
    model: ModelSpec,
    num_gpus: int,
    block_size: int,
    *,
    is_hybrid: bool = True,
    tokens_under_way: int = 0,
) -> Pages:
    """The pages of a model on num_gpus GPUs. Without the hybrid manager every layer stores all
    tokens, if layers differ in what they store. A group whose layers cache fewer bytes a token than
    another's has larger blocks, so that all pages are as large (vLLM's
    unify_kv_cache_spec_page_size); InputError if one is no multiple of the other, as there.
    """
    groups = _groups(model, num_gpus)
    if not is_hybrid and len(groups) > 1:
        return _of_all_layers(model, num_gpus, block_size, tokens_under_way)
    layers = layers_of_page(groups)
    widest = max(group.slot_bytes for group in groups)
    windows, sizes = list[int | None](), list[int]()
    num_chunk_columns = ceil_div(model.chunks.num_layers, layers) if model.chunks else 0
    for group in groups:
        if group.name == CHUNKS:
            continue
        num_columns = ceil_div(group.num_layers, layers)
        windows += [0 if group.state_bytes else group.window] * num_columns
        sizes += [_tokens_of_page(group, widest, block_size)] * num_columns
    return Pages(
        page_bytes=layers * block_size * widest // num_gpus,
        block_size=block_size,
        windows=tuple(windows),
        block_sizes=tuple(sizes),
        tokens_under_way=tokens_under_way,
        chunk=model.chunks.size if model.chunks else None,
        num_chunk_columns=num_chunk_columns,
        more_pages=int(model.latent is not None and model.latent.index_pool > 1),
    )


def _groups(model: ModelSpec, num_gpus: int = 1) -> tuple[KvGroup, ...]:
    """The layers by form of their cache, those of chunked attention apart from full attention, with
    the bytes of all copies on num_gpus GPUs.
    """
    groups = model.groups_on(num_gpus)
    if model.chunks is None:
        return groups
    full, count = groups[0], model.chunks.num_layers
    chunked = replace(full, name=CHUNKS, num_layers=count)
    rest = replace(full, num_layers=full.num_layers - count)
    return tuple(group for group in (rest, chunked) if group.num_layers)


def _tokens_of_page(group: KvGroup, widest: int, block_size: int) -> int:
    """Tokens of a group's block, whose page is as large as that of the group with most bytes."""
    if group.state_bytes:
        return block_size
    if widest % group.slot_bytes:
        raise InputError(
            key="the model",
            problem=(
                f"a layer caches {group.slot_bytes} bytes a token and another {widest}, which is "
                "no multiple: vLLM has no pages for such a model"
            ),
        )
    return block_size * (widest // group.slot_bytes)


def _of_all_layers(
    model: ModelSpec, num_gpus: int, block_size: int, tokens_under_way: int
) -> Pages:
    """Pages if every layer stores all tokens."""
    token_bytes = model.kv_bytes_on(num_gpus) // num_gpus
    return Pages(
        page_bytes=block_size * token_bytes,
        block_size=block_size,
        windows=(None,),
        block_sizes=(block_size,),
        tokens_under_way=tokens_under_way,
    )


def logged_tokens(pages: Pages, num_blocks: int, max_model_len: int, release: Release) -> int:
    """vLLM's "GPU KV cache size", as the release computes it."""
    if release.logs_longest:
        return int(pages.concurrency(num_blocks, max_model_len) * max_model_len)
    return pages.num_tokens(num_blocks)


def logged_lines(num_tokens: int, max_model_len: int, max_concurrency: float) -> list[str]:
    """The two lines, in vLLM's words."""
    return [
        f"GPU KV cache size: {num_tokens:,} tokens",
        f"Maximum concurrency for {max_model_len:,} tokens per request: {max_concurrency:.2f}x",
    ]
