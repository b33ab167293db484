"""Prefix caching over several KV groups: a hit ends where all groups have what the next token
reads.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from testbed.core.errors import InputError, check_least
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import Answer, Answers, CacheHit, Grant, Keep
from testbed.core.units import Count, NonNegative, PositiveTokens, Share
from testbed.memory.groups.grouped import WINDOW_SHARE, Grouped
from testbed.memory.groups.page_table import NONE, GroupIndex, Hit
from testbed.memory.groups.shared_pages import SharedPages
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.hash_chain import Content, block_contents
from testbed.memory.prefix_cache.prefix_caching import CacheCounts
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.served import Batching
from testbed.vllm.releases import DEFAULT, Release

# Tokens: the window of a state in pages, so that the page before the present one is kept until read
CHECKPOINTS = 2


class GroupHit(CacheHit):
    """The nodes of the leading blocks of a prompt of which full attention has all pages."""

    __slots__ = ("_policy", "_seq", "path")

    def __init__(self, policy: "GroupedCaching", seq: Sequence, path: list[Node]) -> None:
        self._policy = policy
        self._seq = seq
        self.path = path

    def num_cached(self, num_tokens: int) -> int:
        return self.choices(num_tokens)[0].num_tokens

    def choices(self, num_tokens: int) -> list[Hit]:
        """What an admission for num_tokens tokens may begin with, the best first."""
        return self._policy.choices_of(self._seq, self.path, num_tokens)


class GroupedCaching(Grouped):
    """The pages of full prompt blocks are findable by content until they are evicted, the least
    recently used first.

    A state has a page for every block, which is the checkpoint behind it when the sequence leaves
    the block (vLLM's mamba_cache_mode=all). A hit is a number of blocks of which the groups of full
    attention have all, a window those that its next token reads, and a state the last; the token
    behind is always computed. A state can be read once its sequence takes its next slots or is
    released, because no kernel waits for another sequence's. With state_spacing, a multiple of
    block_size, only the states behind each so many tokens are findable, and a hit ends at one;
    None: behind each block. num_dropped_blocks: blocks at the end
    of what full attention has that are computed again all the same (1 with vLLM's EAGLE drafts).
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        page_rule: str = "one_page_size",
        watermark: Share = 0.01,
        window_share: NonNegative = WINDOW_SHARE,
        num_dropped_blocks: Count = 0,
        state_spacing: PositiveTokens | None = None,
        release: Release = DEFAULT,
        batching: Batching | None = None,
    ) -> None:
        check_least(0, num_dropped_blocks=num_dropped_blocks)
        has_states = any(group.state_bytes for group in pool.groups)
        _check_spacing(state_spacing, block_size, has_states=has_states)
        self._spacing = block_size if state_spacing is None else state_spacing
        groups = tuple(
            replace(group, window=CHECKPOINTS) if group.state_bytes else group
            for group in pool.groups
        )
        super().__init__(
            replace(pool, groups=groups),
            block_size,
            page_rule,
            watermark,
            window_share,
            release,
            batching,
        )
        self._index = GroupIndex(self.pages)
        self._unready = dict[
            int, list[int]
        ]()  # pages of states that a sequence computes in this iteration, by its id
        self._evictions = 0
        self._evicted_of_hit = False  # since the last extend; False where `fits` needs no less then
        self._num_dropped = num_dropped_blocks
        self._counts = CacheCounts()

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        self._publish_blocks(seq, min(num_tokens, seq.prompt_len) // self.tokens_per_page)

    def _publish_blocks(self, seq: Sequence, num_blocks: int) -> None:
        """The pages that `seq` has of its first blocks are findable by content."""
        self._unready.setdefault(seq.seq_id, [])
        table, node = self._tables[seq.seq_id], self._index.root
        for block, content in enumerate(islice(self._contents(seq), num_blocks)):
            node = self._index.grown(node, content)
            for i, pages in enumerate(table.pages):
                if block >= table.dropped[i] and self._is_kept(i, block):
                    self._set_page(node, i, pages[block - table.dropped[i]], seq)
        self._index.prune(node)

    def _is_kept(self, column: int, block: int) -> bool:
        """Whether the column's page of a full block is findable: of a state, at each spacing."""
        is_state = not self.pages.columns[column].width
        return not is_state or (block + 1) * self.tokens_per_page % self._spacing == 0

    def lookup(self, seq: Sequence) -> GroupHit:
        return GroupHit(self, seq, self._index.path(self._contents(seq)))

    def admit(self, seqs: list[Sequence], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        return self._admit_one_of(seqs, num_tokens, self._hits_for(seqs[0], num_tokens, hit))

    def _hits_for(self, seq: Sequence, num_tokens: int, hit: CacheHit | None) -> list[Hit]:
        group_hit = hit if isinstance(hit, GroupHit) else self.lookup(seq)
        return group_hit.choices(num_tokens)

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        answer = super().extend(batch, num_tokens)
        if isinstance(answer, Grant) and (self._unready or self._evicted_of_hit):
            for seq in batch:
                self._unready.pop(seq.seq_id, None)
            self._evicted_of_hit = False
            return answer._replace(ends_refusals=True)
        return answer

    def _give_back(self, seq: Sequence, keep: Keep) -> None:
        if keep is Keep.NOTHING:
            self._unpublish(seq)
        super()._give_back(seq, keep)
        self._unready.pop(seq.seq_id, None)

    def repeated_reads(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        repeated = num_layers = 0
        for i, column in enumerate(self.pages.columns):
            if column.reads_all:
                reads = batch.index((self, i), partial(self._shared_pages, i))
                repeated += reads.again_with(others) * self.tokens_per_page * column.width
                num_layers += column.width
        return repeated // max(num_layers, 1)

    def counters(self) -> Mapping[str, float]:
        return {**self._counts.by_name(), "evictions": self._evictions}

    def check(self) -> None:
        self._index.check()

    def _shared_pages(self, column: int, batch: Batch) -> SharedPages:
        return SharedPages(self._tables, column, self.tokens_per_page)

    def _unpublish(self, seq: Sequence) -> None:
        """What the pages of `seq` store is not found any more, as far as no other sequence holds
        them.
        """
        for column, pages in enumerate(self._tables[seq.seq_id].pages):
            for page in pages:
                if (column, page) not in self._holders and page in self._index.by_page:
                    self._index.forget(page)

    def _contents(self, seq: Sequence) -> Iterable[Content]:
        """What the leading blocks of `seq` store: those of its prompt that are full."""
        ids = seq.prompt_ids
        return (
            []
            if ids is None
            else list(block_contents(ids, seq.tokens_per_id, seq.prompt_len, self.tokens_per_page))
        )

    def choices_of(self, seq: Sequence, path: list[Node], num_tokens: int) -> list[Hit]:
        """The longest hit; where it is beyond num_tokens, the longest that is not; all others that
        may need fewer.
        """
        path = path[: self._num_readable(seq, num_tokens)]
        unready = {page for pages in self._unready.values() for page in pages}
        hits = [*self._index.hits(path[: max(len(path) - self._num_dropped, 0)], unready), 0]
        within = [hit for hit in hits if hit * self.tokens_per_page <= num_tokens]
        chosen = list[Hit]()
        for num_blocks in dict.fromkeys(
            [hits[0], *(within[:1] if self.pages.hits_save else within)]
        ):
            end = num_blocks * self.tokens_per_page
            dropped = [self.pages.first_read(i, end) for i in range(len(self.pages.columns))]
            pages = [
                [node.memo[i] for node in path[first:num_blocks]] for i, first in enumerate(dropped)
            ]
            chosen.append(Hit(end, pages, dropped))
        return chosen

    def _num_readable(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks of the prompt that an admission for num_tokens tokens may find: the last prompt
        token is computed again unless a generated one follows.
        """
        has_output = num_tokens > seq.prompt_len
        return (seq.prompt_len - (not has_output)) // self.tokens_per_page

    def _hold(self, seq: Sequence, hit: Hit) -> None:
        self._counts.add(seq, self.tokens_per_page, hit.num_tokens // self.tokens_per_page)
        for i, pages in enumerate(hit.pages):
            for page in pages:
                if page in self.pages.queue(i):
                    self.pages.set_idle(i, page, idle=False)
                else:
                    self._holders[i, page] = self._holders.get((i, page), 1) + 1

    def _put(self, column: int, pages: list[int]) -> None:
        for page in reversed(pages):  # so that the beginning of a prompt lasts the longest
            holders = self._holders.pop((column, page), 1) - 1
            if holders > 1:
                self._holders[column, page] = holders
            elif holders:
                continue
            elif page in self._index.by_page:
                self.pages.set_idle(column, page, idle=True)
            else:
                self._put_uncached(column, page)

    def _put_uncached(self, column: int, page: int) -> None:
        """Nobody holds the page, and nothing of it could be found."""
        self.pages.put(column, [page])

    def _ensure_free(self, needed: list[int]) -> None:
        while (queue := self.pages.short(needed)) is not None:
            page, column = next(iter(queue.items()))
            if page in self._index.by_page:
                self._index.forget(page)
                self._evictions += 1
                self._evicted_of_hit = self._caps_windows
            self._free_idle(column, page)

    def _free_idle(self, column: int, page: int) -> None:
        self.pages.set_idle(column, page, idle=False)
        self.pages.put(column, [page])

    def _set_page(self, node: Node, column: int, page: int, seq: Sequence) -> None:
        """A page of `seq` has a block's content; an idle one that had it too is free then, a held
        one stays.
        """
        other = node.memo[column]
        if other == NONE or other in self.pages.queue(column):
            self._index.set_page(node, column, page)
            if other != NONE:
                self._free_idle(column, other)
            if not self.pages.columns[column].width:
                self._unready[seq.seq_id].append(page)


def _check_spacing(spacing: int | None, block_size: int, *, has_states: bool) -> None:
    """Raise InputError for states that would not lie at the ends of blocks, or are not there."""
    if spacing is None:
        return
    if not has_states:
        raise InputError(
            f"state_spacing={spacing}: the model has no layers with states (leave it out)"
        )
    if spacing < 1 or spacing % block_size:
        raise InputError(
            f"state_spacing={spacing}: must be a multiple of block_size={block_size}, at whose "
            "ends states are kept"
        )
