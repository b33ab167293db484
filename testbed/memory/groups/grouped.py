"""Paged memory of a model with several KV groups: windows give back what no later token reads,
states stay.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Row
from dataclasses import replace
from functools import cached_property
from operator import add

from testbed.core.errors import check_least
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import (
    NO_GROWTH,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Extent,
    Footprint,
    Grant,
    Granular,
    GroupTable,
    Growth,
    Keep,
    NonSequenceSlots,
    Refusal,
    Usage,
    ceil_div,
    growth_of,
    never,
)
from testbed.core.units import NonNegative, PositiveTokens, Share
from testbed.memory.groups.aligned_states import AlignedStates
from testbed.memory.groups.page_cache import NoCache
from testbed.memory.groups.page_rule import ONE_PAGE_SIZE, WINDOW_SHARE, pages_by
from testbed.memory.groups.page_rules import Pages
from testbed.memory.groups.page_table import Hit, PageTable, RunningPageTable, other_units
from testbed.memory.layouts import Column, PageLayout
from testbed.memory.leases import LeasingPolicy
from testbed.memory.paged.watermark import Watermark
from testbed.memory.policy import PoolSpec
from testbed.memory.served import Batching
from testbed.vllm.releases import DEFAULT, Release

Wanted = Row[tuple[Sequence, int]]  # sequences, and how many slots more for each
ONE_SEQUENCE = "a policy of several KV groups serves one sequence a request"


class Grouped(LeasingPolicy):
    """Pages of block_size tokens, taken when needed and shared between the groups by `page_rule`.

    Its slots are units: what a token takes in one attention layer, so that a token takes as many as
    there are layers. A chunk keeps the window of its first token; a block that no token of the next
    chunk or step reads is given back as that one is granted. Admission keeps a watermark share of
    the pool free, unless the pool is empty. It serves one sequence a request and caches no
    prefixes. window_share is fixed_split's. If the release frees_late for a scheduler that
    plans ahead, a block is given back one chunk or step later, when those that read it have run.

    `fits` counts a block for all tokens of a sequence. If the release caps_windows, it counts of a
    window no more blocks than a sequence has at once that is computed in chunks: for the window
    before its newest token, the tokens of the iterations that may be under way, and one for a
    window that begins within a block. A prompt may need less then when its hit is evicted, whose
    pages no sequence held: an `extend` that evicts ends refusals.

    release: vLLM's, whose rules for windows are followed. batching: of the scheduler that the
    policy serves; None: one that plans each iteration when the last has run, of any size.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        page_rule: str = ONE_PAGE_SIZE,
        watermark: Share = 0.01,
        window_share: NonNegative = WINDOW_SHARE,
        release: Release = DEFAULT,
        batching: Batching | None = None,
    ) -> None:
        super().__init__()
        check_least(1, block_size=block_size)
        self.tokens_per_page = block_size
        self.pages = pages_by(page_rule, pool, block_size, window_share)
        self.cache = NoCache(self.pages)
        self.states: AlignedStates | None = None
        self.pool = replace(pool, num_slots=self.pages.total, num_layers=1, tiers=())
        self._max_len = pool.max_len
        self._watermark = Watermark(watermark, self.pages.total)
        is_read_later = batching is not None and release.frees_late(batching.plans_ahead)
        self._new_table = RunningPageTable if is_read_later else PageTable
        self._tables: dict[int, PageTable] = {}
        self._returned = 0  # units that windows have given back since the last extend
        self._footprint = Granular(block_size, sum(column.width for column in self.pages.columns))
        self._block_units = sum(column.units for column in self.pages.columns if column.per_block)
        all_blocks = ceil_div(self._max_len, block_size)
        self._all_blocks = [all_blocks] * len(self.pages.columns)
        self._blocks_at_once = self._all_blocks
        self.caps_windows = release.caps_windows and batching is not None
        if release.caps_windows and batching is not None:
            under_way = release.tokens_under_way(
                batching.max_num_batched_tokens, plans_ahead=batching.plans_ahead
            )
            self._blocks_at_once = [self._at_once(c, under_way) for c in self.pages.columns]

    def _at_once(self, column: Column, under_way: int) -> int:
        """Blocks that a sequence has at most while `under_way` of its tokens may be under way."""
        if not column.width or column.window is None:
            return self._all_blocks[0]
        num_tokens = min(column.window - 1 + under_way, self._max_len)
        return ceil_div(num_tokens, self.tokens_per_page) + 1

    @cached_property
    def _longest(self) -> int:
        return self._longest_with(self._all_blocks)

    @cached_property
    def _longest_in_chunks(self) -> int:
        return self._longest_with(self._blocks_at_once)

    def _longest_with(self, most_blocks: list[int]) -> int:
        """Tokens of the longest sequence that an empty pool holds. most_blocks: of a sequence, by
        column.
        """

        def is_too_long(num_tokens: int) -> bool:
            needed = self._behind(self.cache.nothing, num_tokens, most_blocks)
            return not self.pages.fits(needed, self.pages.nothing, self.pages.nothing)

        return bisect_left(range(1, self._max_len + 1), True, key=is_too_long)

    def admit(self, seqs: list[Sequence], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        if len(seqs) > 1:
            return never(ONE_SEQUENCE)
        may_come_in_chunks = self._tables and num_tokens <= self._longest_in_chunks
        if num_tokens > self._longest and not may_come_in_chunks:
            return Refusal.NEVER
        hits = self.cache.hits(seqs[0], num_tokens, hit)
        begins_with = self._fitting(seqs[0], num_tokens, hits, self._all_blocks)
        if begins_with is None:
            return Refusal.LATER
        self._begin(seqs[0], num_tokens, begins_with)
        return [Grant(begins_with.num_tokens)]

    def _begin(self, seq: Sequence, num_tokens: int, hit: Hit) -> None:
        needed = self._behind(hit, num_tokens, self._all_blocks, seq)
        self.cache.hold(seq, hit)
        self.cache.make_free(needed)
        apart = {} if self.states is None else self.states.held(hit)
        pages = [list(found) for found in hit.pages]
        table = self._new_table(seq, self.pages, list(hit.dropped), pages, apart, hit.junction)
        self._take(table, needed, num_tokens)
        table.granted(hit.num_tokens)
        self._tables[seq.seq_id] = table

    def _take(self, table: PageTable, needed: list[int], num_tokens: int) -> None:
        """The sequence gets these pages, for num_tokens tokens."""
        for i, count in enumerate(needed):
            pages = self.pages.take(i, count)
            if i in table.apart:
                table.take_apart(i, num_tokens, pages)
            else:
                table.pages[i] += pages

    def fits(self, seq: Sequence, num_tokens: int, hit: CacheHit) -> bool:
        hits = self.cache.hits(seq, num_tokens, hit)
        return self._fitting(seq, num_tokens, hits, self._blocks_at_once) is not None

    def _fitting(
        self, seq: Sequence, num_tokens: int, hits: list[Hit], most_blocks: list[int]
    ) -> Hit | None:
        """The first of these hits with which num_tokens tokens can be admitted; the last of them
        needs no more pages than any shorter one.
        """
        ready = (hit for hit in hits if not self.cache.must_wait(hit))
        behind = ((hit, self._behind(hit, num_tokens, most_blocks, seq)) for hit in ready)
        return next((hit for hit, needed in behind if self._fits_with(hit, needed)), None)

    def _behind(
        self, hit: Hit, num_tokens: int, most_blocks: list[int], seq: Sequence | None = None
    ) -> list[int]:
        """The pages that a sequence of num_tokens tokens takes besides those of the hit, by column.
        most_blocks: of a sequence, by column.
        """
        num_blocks = ceil_div(max(num_tokens, hit.num_tokens), self.tokens_per_page)
        cached = hit.num_tokens // self.tokens_per_page
        columns = zip(self.pages.columns, most_blocks, strict=True)
        needed = [
            max(min(num_blocks, most) - cached, 0) if column.per_block else 1
            for column, most in columns
        ]
        if self.states is not None:
            self.states.count(needed, self.states.num_pages(seq, hit.num_tokens, num_tokens))
        return needed

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        wanted = [(seq, num_tokens) for seq in batch]
        if not self._can_serve(wanted):
            return Refusal.LATER
        idle = self.pages.idle_units
        self.reserve_in_turn(wanted)
        returned, self._returned = self._returned, 0
        for seq in batch:
            self._tables[seq.seq_id].granted(seq.num_slots)
        return Grant(
            0,
            NO_OPS,
            self._growth(batch, num_tokens, returned),
            Growth(idle - self.pages.idle_units),
            ends_refusals=self.cache.ends_refusals(batch) or returned > 0,
        )

    def reserve_in_turn(self, wanted: Wanted) -> int:
        if not self.pages.serves_in_turn:
            return len(wanted) if self._take_turn(wanted) else 0
        turns = enumerate(wanted)
        return next((served for served, turn in turns if not self._take_turn([turn])), len(wanted))

    def _take_turn(self, wanted: Wanted) -> bool:
        """These give back what their next tokens do not read, in any case, and then get their
        pages if there are enough.
        """
        for seq, _ in wanted:
            table = self._tables[seq.seq_id]
            if table.gives_back():
                self._drop_unread(table)
        num_blocks = self._num_lacking(wanted)
        if num_blocks == 0:
            return True
        needed = self._pages_for(wanted, num_blocks)
        if not self._fit(needed, self.pages.nothing):
            return False
        self.cache.make_free(needed)
        for seq, more in wanted:
            needed = self._pages_for([(seq, more)], self._num_lacking([(seq, more)]))
            self._take(self._tables[seq.seq_id], needed, seq.num_slots + more)
        return True

    def _can_serve(self, wanted: Wanted) -> bool:
        """True if `reserve_in_turn` would serve all of these; changes nothing."""
        num_blocks = self._num_lacking(wanted)
        if num_blocks == 0:
            return True
        if self._fit(self._pages_for(wanted, num_blocks), self.pages.nothing):
            return True
        if not self.pages.serves_in_turn:
            return self._fits_together(wanted)
        return all(self._fit_in_turn(wanted))

    def _fit_in_turn(self, wanted: Wanted) -> Iterator[bool]:
        """The answer of `_fits_together` for each sequence and those before it."""
        needed, unread = self._pages_for([], 0), self._unread([])
        returned = unread
        for turn in wanted:
            more = self._pages_for([turn], self._num_lacking([turn]))
            needed = list(map(add, needed, more))
            left = self._unread([turn[0]])
            if any(left):
                unread = list(map(add, unread, left))
                returned = self.cache.unshared(unread)
            yield self._fit(needed, returned)

    def _fits_together(self, wanted: Wanted) -> bool:
        """True if sequences could be extended once all of them have given back what they can."""
        unread = self._unread([seq for seq, _ in wanted])
        needed = self._pages_for(wanted, self._num_lacking(wanted))
        return self._fit(needed, self.cache.unshared(unread))

    def _fit(self, needed: list[int], returned: Pages) -> bool:
        """True if these pages can be taken once `returned` are back."""
        return self.pages.fits(needed, returned, self.pages.nothing)

    def _num_lacking(self, wanted: Wanted) -> int:
        """Blocks that get pages when these sequences get their slots."""
        tables = self._tables
        return sum([tables[seq.seq_id].num_lacking(seq.num_slots + more) for seq, more in wanted])

    def _pages_for(self, wanted: Wanted, num_blocks: int) -> list[int]:
        """The pages by column that these sequences need, which lack num_blocks blocks."""
        needed = [num_blocks * of_block for of_block in self.pages.of_block]
        if self.states is not None and num_blocks:
            take = self.states.num_pages
            counts = [take(seq, seq.num_slots, seq.num_slots + more) for seq, more in wanted]
            self.states.count(needed, sum(counts))
        return needed

    def _unread(self, seqs: Iterable[Sequence]) -> Pages:
        """The pages that sequences give back with their next tokens, by column."""
        tables = [self._tables[seq.seq_id] for seq in seqs]
        tables = [table for table in tables if table.gives_back()]
        return [
            [page for table in tables for page in table.unread(i)]
            for i in range(len(self.pages.columns))
        ]

    def _drop_unread(self, table: PageTable) -> None:
        """Give back what the next tokens of the sequence do not read."""
        self.cache.dropping(table)
        for i, column in enumerate(self.pages.columns):
            pages = table.give_back(i)
            alone = [page for page in pages if (i, page) not in self.cache.holders]
            self._returned += len(alone) * column.units
            self.cache.put(i, pages)

    def advance(self, batch: Batch, num_steps: int) -> Answer:
        answer = self.extend(batch, num_steps)
        for seq in batch:
            self._tables[seq.seq_id].granted(seq.num_slots + num_steps - 1)
        return answer

    def guaranteed_steps(self, batch: Batch) -> int:
        """Steps before a window gives a block back, and before a page is taken that is not free or
        partly unused.
        """
        if not batch.sequences:
            return 0
        size = self.tokens_per_page
        within_blocks = min(-seq.num_slots % size for seq in batch)
        with_pages = self.pages.free_rounds(len(batch.sequences)) * size
        returning = min(self._tables[seq.seq_id].steps_to_return() for seq in batch)
        return max(0, min(max(within_blocks, with_pages), returning, self._max_len))

    def footprint(self, seq: Sequence) -> Footprint:
        return self._footprint

    def _give_back(self, seq: Sequence, keep: Keep) -> None:
        table = self._tables.pop(seq.seq_id)
        self.cache.releasing(table, keep)
        if self.states is not None:
            self.states.forget(seq)
        for i, pages in enumerate(table.pages):
            self.cache.put(i, pages)

    def table(self, seq: Sequence) -> list[Extent]:
        return [extent for part in self.group_tables(seq) for extent in part.extents]

    def group_tables(self, seq: Sequence) -> list[GroupTable]:
        return self._tables[seq.seq_id].group_tables()

    def usage(self) -> Usage:
        columns, holders = self.pages.columns, self.cache.holders.items()
        saved = sum((count - 1) * columns[column].units for (column, _), count in holders)
        held = live = -saved
        for table in self._tables.values():
            for column, pages, dropped in zip(columns, table.pages, table.dropped, strict=True):
                units = len(pages) * column.units
                held += units
                live += (
                    (table.seq.num_slots - dropped * self.tokens_per_page) * column.width
                    if column.width
                    else units
                )
        total, free, idle = self.pages.total, self.pages.free_units, self.pages.idle_units
        return Usage(
            total=total,
            live=live,
            held=held,
            allocated=total - free - idle,
            cached=idle,
            free=free,
            largest_free=free + idle,
            saved=saved,
        )

    def non_sequence_slots(self) -> NonSequenceSlots:
        tables = self._tables.values()
        held = {
            (i, page) for table in tables for i, pages in enumerate(table.pages) for page in pages
        }
        return other_units(self.pages, held)

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        """The longest sequence that could be computed again as a whole, with all tokens of its
        windows or in chunks; 0 for several.
        """
        return self._longest_in_chunks if num_seqs == 1 else 0

    def counters(self) -> Mapping[str, float]:
        return self.cache.counters()

    def check(self) -> None:
        super().check()
        self.cache.check()

    def layout(self) -> PageLayout:
        return PageLayout(
            self.pool, self.tokens_per_page, self.pages.page_units, self.pages.columns
        )

    def _fits_with(self, hit: Hit, needed: list[int]) -> bool:
        """True if the needed pages of each column can be taken, and the idle ones of the hit be
        held; the watermark stays free.
        """
        idle = [
            [page for page in pages if page in self.pages.queue(i)]
            for i, pages in enumerate(hit.pages)
        ]
        taken = zip(needed, idle, self.pages.columns, strict=True)
        units = sum((count + len(more)) * column.units for count, more, column in taken)
        left = self.pages.free_units + self.pages.idle_units - units
        spare = left >= self._watermark.reserve(len(self._tables))
        return spare and self.pages.fits(needed, self.pages.nothing, idle)

    def _growth(self, batch: Batch, num_tokens: int, returned: int) -> Growth:
        size = self.tokens_per_page
        events = [(0, -returned)] if returned else []
        for first, count in Counter(-seq.num_slots % size for seq in batch).items():
            events += [(step, count * self._block_units) for step in range(first, num_tokens, size)]
        return growth_of(events) if events else NO_GROWTH
