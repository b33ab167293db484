"""The pages of vLLM's KV cache: how large they are, and what a sequence takes of them."""

from dataclasses import dataclass

from testbed.core.layers import KvGroup
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec


@dataclass(frozen=True)
class Pages:
    """Pages of one size, which the groups of a model share (OnePageSize has the rule).

    page_bytes: on each GPU. windows: of each column of a group, the tokens that it reads, None for
    all and 0 for a state, of which a sequence has one page.
    """

    page_bytes: int
    block_size: int
    windows: tuple[int | None, ...]
    max_num_batched_tokens: int = 0

    @property
    def is_grouped(self) -> bool:
        """Whether some layers store less than all tokens."""
        return self.windows != (None,)

    def num_tokens(self, num_blocks: int) -> int:
        """vLLM's "GPU KV cache size": the blocks of one group."""
        return num_blocks // len(self.windows) * self.block_size

    def of_sequence(self, num_tokens: int) -> int:
        """Pages of a sequence that is so long (vLLM's max_memory_usage_bytes)."""
        return sum(self._of_column(window, num_tokens) for window in self.windows)

    def longest(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that so many pages hold; 0 where none fits."""
        low, high = 0, num_blocks * self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.of_sequence(middle) <= num_blocks else (low, middle - 1)
            )
        return low

    def _of_column(self, window: int | None, num_tokens: int) -> int:
        if window == 0:
            return 1
        if window is None:
            return ceil_div(num_tokens, self.block_size)
        read = min(window - 1 + self.max_num_batched_tokens, num_tokens)
        return ceil_div(read, self.block_size) + 1  # a window may begin within a block


def pages_of(
    model: ModelSpec,
    num_gpus: int,
    block_size: int,
    *,
    is_hybrid: bool = True,
    max_num_batched_tokens: int = 0,
) -> Pages:
    """The pages of a model on num_gpus GPUs. Without the hybrid manager every layer stores all
    tokens.
    """
    groups = model.groups if is_hybrid else (_all_full(model),)
    counts = [group.num_layers for group in groups]
    layers = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    slot_bytes = model.slot_bytes * model.kv_copies(num_gpus) // num_gpus
    windows = list[int | None]()
    for group in groups:
        reads = 0 if group.state_bytes else group.window
        windows += [reads] * ceil_div(group.num_layers, layers)
    return Pages(
        layers * block_size * slot_bytes, block_size, tuple(windows), max_num_batched_tokens
    )


def _all_full(model: ModelSpec) -> KvGroup:
    return KvGroup("full", model.num_attention_layers, model.slot_bytes)


def logged_lines(num_tokens: int, max_model_len: int, max_concurrency: float) -> list[str]:
    """The two lines, in vLLM's words."""
    return [
        f"GPU KV cache size: {num_tokens:,} tokens",
        f"Maximum concurrency for {max_model_len:,} tokens per request: {max_concurrency:.2f}x",
    ]
