"""Paged memory (section 4): block tables over a pool of equal blocks, copy-on-write, moves between
tiers.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import chain, compress
from typing import ClassVar

from testbed.core.errors import InputError
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import (
    DEVICE,
    GRANTED,
    HOST,
    NO_GROWTH,
    NO_HIT,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Extent,
    Footprint,
    Grant,
    Granular,
    Growth,
    Keep,
    Move,
    NonSequenceSlots,
    Ops,
    Refusal,
    Usage,
    ceil_div,
    growth_at,
    record,
)
from testbed.core.units import PositiveTokens, Share
from testbed.memory.layouts import BlockLayout
from testbed.memory.leases import LeasingPolicy
from testbed.memory.paged.block_boundaries import BlockIndex
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables, moving
from testbed.memory.paged.copy_on_write import copy_tails, copying_writers
from testbed.memory.paged.watermark import Watermark
from testbed.memory.policy import PoolSpec, UnsupportedError
from testbed.memory.shared_reads import SharedReads


class BlockMemory(LeasingPolicy):
    """Blocks of block_size slots, taken when needed; admission keeps a watermark share of the pool
    free (watermark.py).

    `blocks` is the pool to take blocks from, by default a new one. `admit` answers Refusal.NEVER
    if the tokens exceed an empty pool without the blocks of registered prefixes.
    """

    max_block_size: ClassVar[int] = 256

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.01,
        blocks: BlockPool | None = None,
    ) -> None:
        if not 1 <= block_size <= self.max_block_size:
            raise InputError(
                key="block_size",
                value=block_size,
                problem=f"must be from 1 to {self.max_block_size} tokens",
            )
        super().__init__()
        self.block_size = block_size
        self._max_len = pool.max_len
        self._footprint = Granular(block_size)
        self._pool = BlockPool(pool.num_slots // block_size) if blocks is None else blocks
        self._has_other_blocks = self._pool.has_other_blocks
        self._watermark = Watermark(watermark, self._pool.num_blocks)
        self._tables = Tables(self._pool, block_size)
        self._host = Tables(BlockPool(pool.slots_of(HOST) // block_size), block_size)

    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """Several sequences share the full blocks of their prompt, as they would after a fork and a
        first write.

        Each sequence computes the partial last block of the prompt itself: a copy would run before
        the iteration that computes it. A registered prefix is stored as a whole, even if num_tokens
        is smaller.
        """
        first, num_others = seqs[0], len(seqs) - 1
        prefix: list[int] = []
        if registered := first.registered_prefix in self._tables.prefixes:
            prefix = self._tables.whole_prefix(first)
            num_tokens = max(num_tokens, first.registered_prefix)
        num_blocks = -(-num_tokens // self.block_size)  # of each sequence
        num_shared = first.prompt_len // self.block_size
        needed = num_blocks - len(prefix) + num_others * (num_blocks - num_shared)
        if not self._ensure_free(needed, self.reserve(self._tables.held.values())):
            return Refusal.NEVER if needed > self._capacity() else Refusal.LATER
        if prefix:
            self._pool.share(prefix)
        blocks = self._allocate_tables(seqs, num_tokens, prefix)
        grant = GRANTED
        if registered:
            grant = Grant(first.registered_prefix, self._tables.rest_of_prefix(first, blocks))
            for seq in seqs:
                self._tables.held[seq.seq_id].pinned = len(prefix)
        if not num_others:
            return [grant]
        return [grant, *[Grant(num_shared * self.block_size)] * num_others]

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        index: BlockIndex | None = batch.indexes.get(self)
        if index is None:
            if len(batch.sequences) == 1:
                [seq] = batch.sequences.values()
                table, num_slots = self._tables.of(seq), seq.slots_offset + batch.extended
                is_full = num_slots % self.block_size == 0  # others may have its last block too
                if is_full or table.blocks[-1] not in self._pool.sharers:
                    return self._extend_alone(table, num_slots, num_tokens)
            index = batch.index(self, self._index)
        if index.lacking and self._still_lacks(index, num_tokens):
            return Refusal.LATER
        num_seqs, num_free = len(batch.sequences), len(self._pool.free)
        writers = copying_writers(self._tables, index.tails.values()) if index.tails else ()
        evicted = NO_GROWTH
        # The most blocks that a sequence can need: it may be at the end of one
        most_blocks = (num_tokens - 2) // self.block_size + 2
        if most_blocks * num_seqs + len(writers) > num_free:
            needed = self._requested_by(index, num_tokens, writers)
            if not self._ensure_free(needed):
                if num_tokens == 1 and not index.tails:
                    index.lacking = needed
                return Refusal.LATER
            if needed > num_free:
                evicted = index.marked(num_tokens, [False] * num_free + self._pool.were_cached)
        self._tables.live += num_tokens * num_seqs
        if index.tails:  # never within guaranteed steps
            ops = copy_tails(self._tables, writers, batch.extended)
            index.tails.clear()
            grown = (index.step(), 0, 0) if num_tokens == 1 else index.grow(num_tokens)
            slots, slot_steps, squared = grown
            slots += len(writers) * self.block_size
            growth: Growth = record(Growth, (slots, slot_steps, squared))
            return record(Grant, (0, ops, growth, NO_GROWTH, False))
        if num_tokens == 1:
            grant = taken_at_once(index.step())
            return grant if evicted is NO_GROWTH else grant._replace(evicted=evicted)
        return record(Grant, (0, NO_OPS, index.grow(num_tokens), evicted, False))

    def _still_lacks(self, index: BlockIndex, num_tokens: int) -> bool:
        """True if the step is the one that was refused, and its blocks are not there yet; else the
        index forgets that it was refused.
        """
        is_same = num_tokens == 1 and not index.tails
        if is_same and index.lacking > self._pool.available():
            return True
        index.lacking = 0
        return False

    def _extend_alone(self, table: BlockTable, num_slots: int, num_tokens: int) -> Answer:
        """`extend` of one sequence that copies no block, such as a prompt's next chunk: as by an
        index, which it does not need.
        """
        size, pool, blocks = self.block_size, self._pool, table.blocks
        num_free, evicted = len(pool.free), NO_GROWTH
        needed = -(-(num_slots + num_tokens) // size) - len(blocks)
        first = -num_slots % size  # of the steps that take the blocks, which are `size` apart
        if needed > num_free:
            if not self._ensure_free(needed):
                return Refusal.LATER
            evicted = self._evicted_by(first + num_free * size, needed - num_free)
        blocks += pool.take(needed)
        self._tables.live += num_tokens
        growth = blocks_taken(first, needed, size) if needed else NO_GROWTH
        return record(Grant, (0, NO_OPS, growth, evicted, False))

    def _evicted_by(self, first: int, count: int) -> Growth:
        """The steps first, first + size, ..., which take the `count` blocks that were just evicted,
        as far as these were cached.
        """
        size, were_cached = self.block_size, self._pool.were_cached
        if all(were_cached):
            return blocks_taken(first, len(were_cached), size) if were_cached else NO_GROWTH
        steps = range(first, first + count * size, size)
        return growth_at([*compress(steps, were_cached)], size)

    def fits(self, seq: Sequence, num_tokens: int, hit: CacheHit = NO_HIT) -> bool:
        table, reserve, num_own = self._tables.held.get(seq.seq_id), self._reserve(), 0
        if table is not None:
            num_own = len(table.blocks)
            if len(self._tables.held) == 1:  # it alone: nothing is kept free for others
                reserve = 0
        elif seq.registered_prefix in self._tables.prefixes:
            num_own = len(self._tables.whole_prefix(seq))
        needed = ceil_div(num_tokens, self.block_size) - num_own
        return needed + reserve <= self._pool.available()

    def reserve(self, tables: Collection[BlockTable]) -> int:
        """Blocks that an admission, and a return from the host, must leave free: the watermark's.

        A subclass may override this. Between two releases the number must not fall by more than the
        blocks that these sequences take, because a refusal stays valid until something is released.
        It must be 0 without tables, so that every request that fits an empty pool is admitted.

        Args:
            tables: those of the sequences on the device, with their blocks.
        """
        return self._watermark.reserve(len(tables))

    def table(self, seq: Sequence) -> list[Extent]:
        return self._extents(self._tables.of(seq).blocks)

    def usage(self) -> Usage:
        size, pool, live = self.block_size, self._pool, self._tables.live
        total, saved = pool.num_blocks * size, pool.num_saved * size
        if not self._has_other_blocks:
            free = len(pool.free) * size
            held = total - free
            return record(Usage, (total, live, held, held, 0, free, free, saved, 0))
        num_free, num_cached, num_in_transit = pool.counts()
        free, cached, in_transit = num_free * size, num_cached * size, num_in_transit * size
        held, most = total - free - cached - in_transit, free + cached
        return record(Usage, (total, live, held, held, cached, free, most, saved, in_transit))

    def repeated_reads(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        tables = self._tables
        if not (others or tables.prefixes or self._leased):
            return (self._pool.num_saved - self._saved_outside(batch)) * self.block_size
        reads: SharedReads = batch.indexes.get(tables) or batch.index(tables, self._shared_reads)
        return (reads.again_with(others) if others else reads.again()) * self.block_size

    def _saved_outside(self, batch: Batch) -> int:
        """Of the blocks that sharing saves, those that the batch does not read again, because a
        sequence outside it has them. Such sequences are prompts in most cases, whose tables are
        the last.
        """
        sharers, left = self._pool.sharers, len(self._tables.held) - len(batch.sequences)
        if not left:
            return 0
        outside: list[list[int]] = []  # of each such sequence, the blocks that it shares
        for table in reversed(self._tables.held.values()):
            if table.seq.batch is not batch:
                outside.append([*filter(sharers.__contains__, table.blocks)])
                if len(outside) == left:
                    break
        if left == 1:
            return len(outside[0])
        counts = Counter(chain.from_iterable(outside))
        return sum([min(count, sharers[block] - 1) for block, count in counts.items()])

    def guaranteed_steps(self, batch: Batch) -> int:
        return self._steps_within(batch, self._pool.available())

    def _steps_within(self, batch: Batch, num_blocks: int) -> int:
        index: BlockIndex = batch.indexes.get(self) or batch.index(self, self._index)
        if index.tails or not batch.sequences:
            return 0
        steps = index.steps_within(num_blocks)
        return steps if steps < self._max_len else self._max_len

    def footprint(self, seq: Sequence) -> Footprint:
        return self._footprint

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        common = prompt_len // self.block_size if num_seqs > 1 else 0
        return self.block_size * (common + (self._capacity() - common) // num_seqs)

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        batch, num_slots = parent.batch, parent.slots_offset
        if batch is not None:
            num_slots += batch.extended
        has_tail, tables = num_slots % self.block_size > 0, self._tables
        for table in tables.fork(parent, child, num_slots):
            if (batch := table.seq.batch) is None:
                continue
            indexes = batch.indexes
            if has_tail:
                index: BlockIndex = indexes.get(self) or batch.index(self, self._index)
                index.tails[table.seq.seq_id] = table
            if tables in indexes:
                indexes[tables].changed(table.seq)
        return NO_OPS

    def move(self, seqs: list[Sequence], tier: str) -> Answer:
        if tier not in (DEVICE, HOST):
            raise UnsupportedError(
                f"{type(self).__name__}: tier {tier}: is none of {DEVICE} and {HOST}"
            )
        source, target = (self._tables, self._host) if tier == HOST else (self._host, self._tables)
        tables = [source.of(seq) for seq in seqs]
        needed = len(moving(tables))
        if tier == HOST:
            has_blocks = needed <= len(self._host.pool.free)
        else:
            # Every sequence may need a block in its next step; without these the group would be
            # moved out again
            reserve = self._reserve() + len(seqs) if self._tables.held else 0
            has_blocks = self._ensure_free(needed, reserve)
        if not has_blocks:
            return Refusal.LATER
        copies = target.receive(tables)
        for table in tables:
            source.give_up(table.seq, table.pinned)
        return Grant(0, Ops(moves=(Move(DEVICE if tier == HOST else HOST, tier, copies),)))

    def swapped_table(self, seq: Sequence) -> Mapping[str, list[Extent]]:
        """A registered prefix stays on the device."""
        table = self._host.of(seq)
        pinned, moved = table.blocks[: table.pinned], table.blocks[table.pinned :]
        return {DEVICE: self._extents(pinned), HOST: self._extents(moved)}

    def layout(self) -> BlockLayout:
        return BlockLayout(self.block_size)

    def register_prefix(self, num_tokens: int) -> None:
        """Pin num_tokens tokens; later sequences with that registered_prefix share its whole
        blocks.
        """
        needed = ceil_div(num_tokens, self.block_size)
        if not self._ensure_free(needed):
            raise InputError(
                key="the pool",
                problem=(
                    f"has {len(self._pool.free)} free blocks, and a prefix of {num_tokens} tokens "
                    f"needs {needed}"
                ),
                remedy="give a larger pool",
            )
        self._tables.prefixes[num_tokens] = self._pool.take(needed)
        self._tables.live += num_tokens

    def non_sequence_slots(self) -> NonSequenceSlots:
        pool, pinned = self._pool, chain.from_iterable(self._tables.prefixes.values())
        kinds = (pinned, pool.evictable(), pool.in_transit())
        pinned_slots, cached, in_transit = (self._runs(blocks) for blocks in kinds)
        return NonSequenceSlots(pinned_slots, cached, (), in_transit)

    def _give_back(self, seq: Sequence, keep: Keep) -> None:
        if swapped := self._host.held.get(seq.seq_id):
            self._host.give_up(seq, swapped.pinned)
            self._pool.put(swapped.blocks[: swapped.pinned])
        else:
            self._tables.give_up(seq)

    def _index(self, batch: Batch) -> BlockIndex:
        return BlockIndex(batch, self._tables, self._pool)

    def _shared_reads(self, batch: Batch) -> SharedReads:
        return SharedReads(self._full_blocks)

    def _full_blocks(self, seq: Sequence) -> list[int]:
        return self._tables.of(seq).blocks[: seq.num_slots // self.block_size]

    def _capacity(self) -> int:
        prefixes = self._tables.prefixes
        pinned = sum(map(len, prefixes.values())) if prefixes else 0
        return self._pool.num_blocks - pinned

    def _reserve(self) -> int:
        return self.reserve(self._tables.held.values())

    def _extents(self, blocks: Iterable[int]) -> list[Extent]:
        known = extents_of_blocks(self.block_size)
        return list(map(known.__getitem__, blocks))

    def _runs(self, blocks: Iterable[int]) -> tuple[Extent, ...]:
        """The slots of these blocks, adjacent ones as one extent: most of a pool may be cached."""
        size, runs = self.block_size, list[Extent]()
        start = end = 0
        for block in blocks:
            if block != end:
                if end > start:
                    runs.append(record(Extent, (start * size, (end - start) * size)))
                start = block
            end = block + 1
        if end > start:
            runs.append(Extent(start * size, (end - start) * size))
        return tuple(runs)

    def _requested_by(
        self, index: BlockIndex, num_tokens: int, writers: Collection[BlockTable]
    ) -> int:
        return index.needed(num_tokens) + len(writers)

    def _ensure_free(self, needed: int, reserve: int = 0) -> bool:
        """True if needed + reserve blocks are free or can be evicted; needed ones are free then."""
        free = len(self._pool.free)
        if needed + reserve > free and needed + reserve > self._pool.available():
            return False
        if needed > free:
            self._pool.evict(needed - free)
        return True

    def _allocate_tables(
        self, seqs: list[Sequence], num_tokens: int, cached: list[int]
    ) -> list[int]:
        """A group's tables, the first one's from `cached` on, which share the whole blocks of the
        prompt; its blocks.
        """
        first, size, pool, tables = seqs[0], self.block_size, self._pool, self._tables
        num_blocks, num_shared = -(-num_tokens // size), first.prompt_len // size
        blocks = cached + pool.take(num_blocks - len(cached))
        tables.held[first.seq_id] = BlockTable(first, blocks)
        tables.live += num_tokens - len(cached) * size
        for seq in seqs[1:]:
            shared = blocks[:num_shared]
            pool.share(shared)
            own = pool.take(num_blocks - num_shared)
            tables.held[seq.seq_id] = BlockTable(seq, shared + own)
            tables.live += num_tokens - num_shared * size
        return blocks


class Paged(BlockMemory):
    """Block memory that can also take back the end of a sequence: nothing else finds it."""

    def truncate(self, seq: Sequence, num_tokens: int) -> Grant:
        self._tables.cut(seq, seq.num_slots - num_tokens)
        return GRANTED


@lru_cache(1 << 10)
def blocks_taken(first: int, count: int, size: int) -> Growth:
    """`growth_of` the steps first, first + size, ..., each of which takes a block of `size`
    slots.
    """
    pairs = count * (count - 1) // 2
    steps = count * first + size * pairs
    squared = first * (count * first + 2 * size * pairs)
    squared += size * size * (pairs * (2 * count - 1) // 3)
    return record(Growth, (size * count, size * steps, size * squared))


@lru_cache(1 << 10)
def taken_at_once(slots: int) -> Grant:
    return Grant(growth=Growth(slots)) if slots else GRANTED


class BlockExtents(dict[int, Extent]):
    """The slots of each block of `size` slots that a table has listed, one object for each: all
    tables list these.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __missing__(self, block: int) -> Extent:
        extent: Extent = record(Extent, (block * self.size, self.size))
        self[block] = extent
        return extent


@lru_cache(8)
def extents_of_blocks(size: int) -> BlockExtents:
    """The extents of blocks of `size` slots, in any pool of this process."""
    return BlockExtents(size)
