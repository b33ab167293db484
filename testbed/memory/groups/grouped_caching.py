"""Prefix caching over several KV groups: a hit ends if all groups have what the next token
reads.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from testbed.core.errors import InputError, check_least
from testbed.core.sequence import Batch, Sequence
from testbed.core.units import Count, PositiveTokens
from testbed.memory.groups.cached_contents import PromptContents
from testbed.memory.groups.checkpoints import EachSpacing
from testbed.memory.groups.grouped import Grouped
from testbed.memory.groups.page_cache import GroupHit, PageCache
from testbed.memory.groups.page_table import PageTable
from testbed.memory.policy import PoolSpec
from testbed.memory.shared_reads import SharedReads

# Tokens: the window of a state in pages, so that the page before the present one is kept until read
CHECKPOINTS = 2


class GroupedCaching(Grouped):
    """The pages of full prompt blocks are findable by content until they are evicted, the least
    recently used first.

    A state has a page for every block, which is the checkpoint behind it when the sequence leaves
    the block (vLLM's mamba_cache_mode=all). A hit is a number of blocks of which the groups of full
    attention have all, a window those that its next token reads, and a state the last; the token
    behind is always computed. A state can be read once its sequence takes its next slots or is
    released, because no kernel waits for another sequence's. With state_spacing, a multiple of
    block_size, only the states at its multiples are findable, and a hit ends at one;
    None: behind each block. num_dropped_blocks: blocks at the end
    of what full attention has that are computed again all the same (1 with vLLM's EAGLE drafts).
    contents: what is findable, the prompts' by default. pages: the options of Grouped.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        *,
        num_dropped_blocks: Count = 0,
        state_spacing: PositiveTokens | None = None,
        contents: PromptContents | None = None,
        **pages: Any,
    ) -> None:
        check_least(0, num_dropped_blocks=num_dropped_blocks)
        has_states = any(group.state_bytes for group in pool.groups)
        _check_spacing(state_spacing, block_size, has_states=has_states)
        super().__init__(_with_checkpoints(pool), block_size, **pages)
        self.cache: PageCache = PageCache(
            self.pages,
            contents or PromptContents(),
            checkpoints=EachSpacing(self.pages, state_spacing or block_size),
            num_dropped=num_dropped_blocks,
            eviction_admits=self.caps_windows,
        )

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        num_blocks = min(num_tokens, seq.prompt_len) // self.tokens_per_page
        self.cache.publish(self._tables[seq.seq_id], num_blocks)

    def lookup(self, seq: Sequence) -> GroupHit:
        return GroupHit(self.cache, seq)

    def repeated_reads(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        repeated = num_layers = 0
        for i, column in enumerate(self.pages.columns):
            if column.reads_all:
                reads = batch.index((self, i), partial(self._shared_pages, i))
                repeated += reads.again_with(others) * self.tokens_per_page * column.width
                num_layers += column.width
        return repeated // max(num_layers, 1)

    def _drop_unread(self, table: PageTable) -> None:
        """The pages that steps have filled may be published then, and be shared."""
        super()._drop_unread(table)
        if (batch := table.seq.batch) is not None:
            for i in range(len(self.pages.columns)):
                if (self, i) in batch.indexes:
                    batch.indexes[self, i].changed(table.seq)

    def _shared_pages(self, column: int, batch: Batch) -> SharedReads:
        return SharedReads(partial(self._full_pages, column))

    def _full_pages(self, column: int, seq: Sequence) -> list[int]:
        """Pages of a column of full attention, which begin at block 0 and stay until `seq` ends."""
        pages = self._tables[seq.seq_id].pages[column]
        return pages[: seq.num_slots // self.tokens_per_page]


def _with_checkpoints(pool: PoolSpec) -> PoolSpec:
    """The pool whose states have a page for each block."""
    groups = (
        replace(group, window=CHECKPOINTS) if group.state_bytes else group for group in pool.groups
    )
    return replace(pool, groups=tuple(groups))


def _check_spacing(spacing: int | None, block_size: int, *, has_states: bool) -> None:
    """Raise InputError for states that would not lie at the ends of blocks, or are not there."""
    if spacing is None:
        return
    if not has_states:
        raise InputError(
            key="state_spacing",
            value=spacing,
            problem="the model has no layers with states",
            remedy="leave it out",
        )
    if spacing < 1 or spacing % block_size:
        raise InputError(
            key="state_spacing",
            value=spacing,
            problem=f"must be a multiple of block_size={block_size}, at whose ends states are kept",
        )
