"""Paged memory (section 4): block tables over a pool of equal blocks, copy-on-write, moves between tiers."""

from collections.abc import Iterable
from math import ceil

from testbed.core.batch import Batch
from testbed.core.sequence import Sequence
from testbed.core.slots import (
    GRANTED,
    NO_OPS,
    Answer,
    Answers,
    Extent,
    Grant,
    Growth,
    Ops,
    Refusal,
    Tier,
    Unowned,
    Usage,
    Waste,
    ceil_div,
)
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, PagedLockstep, first_step, moments
from testbed.memory.paged.block_tables import Tables, stored_tokens
from testbed.memory.paged.copy_on_write import copying_writers
from testbed.memory.paged.registered_prefixes import RegisteredPrefixes
from testbed.memory.paged.swap_space import SwapSpace, distinct
from testbed.memory.policy import MemoryPolicy, PoolSpec


class Paged(MemoryPolicy):
    """Blocks of block_size slots, taken when needed; admission keeps a watermark share of the pool free.

    The watermark (section 4.5; the artifact's 1%) is waived when nothing is resident, so that a pool that could hold
    a request always admits it in the end. `order` lists the block ids in the order in which a fresh pool hands them
    out. Refuses NEVER where the tokens would not fit an empty pool less the registered prefixes.
    """

    shares = True
    moves_tiers = True
    max_block_size = 256

    def __init__(
        self, pool: PoolSpec, block_size: int = 16, watermark: float = 0.01, order: Iterable[int] | None = None
    ) -> None:
        if not 1 <= block_size <= self.max_block_size:
            raise ValueError(f"block_size is {block_size}; it must be from 1 to {self.max_block_size} tokens")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}; it must be a share of the pool, at least 0 and below 1")
        self.block_size = block_size
        self._pool = BlockPool(pool.num_slots // block_size, order)
        self._watermark = ceil(watermark * self._pool.num_blocks)
        self._tables = Tables(self._pool, block_size)
        self._host = SwapSpace(pool.num_host_slots // block_size, block_size)
        self._prefixes = RegisteredPrefixes(block_size)
        self._lockstep: PagedLockstep | None = None

    def admit(self, seq: Sequence, num_tokens: int) -> Answer:
        return self._admit(seq, num_tokens, 0)

    def admit_all(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """The whole blocks of the prompt are shared, as they would be after a fork and a first write.

        Its partial last block is everybody's own, and computed by everybody: a copy would come before the iteration,
        when there is nothing to copy yet.
        """
        first, *others = seqs
        shared = first.prompt_len // self.block_size * self.block_size
        own = ceil_div(num_tokens - shared, self.block_size)
        answer = self._admit(first, shared, len(seqs) * own)
        if isinstance(answer, Refusal):
            return answer
        for child in others:
            self.fork(first, child)
        self.extend(seqs, num_tokens - shared)
        return [answer, *[Grant(shared)] * len(others)]

    def _admit(self, seq: Sequence, num_tokens: int, more: int) -> Answer:
        """Room for num_tokens tokens, if `more` blocks are left behind that for what comes next."""
        shared = self._prefixes.shared(seq, num_tokens)
        needed = ceil_div(num_tokens, self.block_size) - len(shared)
        if needed + more > self._capacity():
            return Refusal.NEVER
        if not self._make_room(needed, more + self._reserve()):
            return Refusal.LATER
        table = BlockTable(num_tokens, shared + self._pool.take(needed))
        self._tables[seq.seq_id] = table
        self._tables.live += num_tokens - len(shared) * self.block_size
        return self._prefixes.hit(seq, table, self._pool) if seq.prefix in self._prefixes else GRANTED

    def extend(self, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
        if isinstance(seqs, Batch):
            index = self._lockstep
            if index is None or index.batch is not seqs:
                index = self._index(seqs)
            return self._extend_batch(index, num_tokens)
        tables = [self._tables.of(seq) for seq in seqs]
        writers = copying_writers(tables, self._pool, self.block_size)
        missing = [ceil_div(t.num_tokens + num_tokens, self.block_size) - len(t.blocks) for t in tables]
        if not self._make_room(sum(missing) + len(writers)):
            return Refusal.LATER
        ops = self._tables.copy_tails(writers)
        events = [(len(writers), 0, 0)]
        for table, count in zip(tables, missing, strict=True):
            events.append(moments(-table.num_tokens % self.block_size, count, self.block_size))
            table.blocks.extend(self._pool.take(count))
            table.offset += num_tokens
        self._tables.live += num_tokens * len(tables)
        return Grant(0, ops, Growth(*(self.block_size * sum(column) for column in zip(*events, strict=True))))

    def release(self, seq: Sequence) -> None:
        if seq.seq_id in self._host.tables:
            self._pool.put(self._host.drop(seq))
        else:
            self._tables.give_up(seq)

    def table(self, seq: Sequence) -> list[Extent]:
        return [Extent(block * self.block_size, self.block_size) for block in self._tables.of(seq).blocks]

    def usage(self) -> Usage:
        size = self.block_size
        total, free = self._pool.num_blocks * size, len(self._pool.free) * size
        held = total - free
        return Usage(total, self._tables.live, held, held, 0, free, free, self._pool.num_saved * size)

    def horizon(self, seqs: Iterable[Sequence], limit: int) -> int:
        if not isinstance(seqs, Batch):
            return 0
        index = self._lockstep
        if index is None or index.batch is not seqs:
            index = self._index(seqs)
        return 0 if index.tails else index.steps_within(len(self._pool.free), limit)

    def waste(self, seq: Sequence, final_len: int) -> Waste:
        size = self.block_size
        last_block = (final_len - 1) // size * size
        return Waste(last_block + 1, last_block + size - final_len)

    def fits(self, prompt_len: int, output_len: int, num_seqs: int) -> bool:
        size = self.block_size
        shared = prompt_len // size if num_seqs > 1 else 0
        return shared + num_seqs * (ceil_div(prompt_len + output_len, size) - shared) <= self._capacity()

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        self._tables.fork(parent, child)
        if self._lockstep is not None:
            self._lockstep.forked(parent.seq_id, child.seq_id)
        return NO_OPS

    def move(self, seqs: list[Sequence], tier: Tier) -> Answer:
        return self._move_out(seqs) if tier is Tier.HOST else self._move_in(seqs)

    def register_prefix(self, num_tokens: int) -> None:
        """Pin num_tokens tokens; sequences whose `prefix` is num_tokens share their whole blocks from then on."""
        needed = ceil_div(num_tokens, self.block_size)
        if not self._make_room(needed):
            raise ValueError(f"a prefix of {num_tokens} tokens needs {needed} blocks; {len(self._pool.free)} are free")
        self._prefixes.pin(num_tokens, self._pool.take(needed))
        self._tables.live += num_tokens

    def unowned(self) -> Unowned:
        size = self.block_size
        pinned = (block for table in self._prefixes for block in table.blocks)
        return Unowned(pinned=tuple(Extent(block * size, size) for block in pinned))

    def check(self) -> None:
        self._tables.check([*self._prefixes], [host.kept for host in self._host.tables.values()])
        self._host.check()

    def _index(self, batch: Batch) -> PagedLockstep:
        index = PagedLockstep.on(batch, self._tables)
        self._lockstep = index or PagedLockstep(batch, self._tables, self._pool, self.block_size)
        return self._lockstep

    def _capacity(self) -> int:
        return self._pool.num_blocks - self._prefixes.num_blocks

    def _reserve(self) -> int:
        return self._watermark if self._tables else 0

    def _make_room(self, needed: int, reserve: int = 0) -> bool:
        """Whether `needed` blocks are free, and `reserve` more; a subclass may free some to make it so."""
        return len(self._pool.free) >= needed + reserve

    def _extend_batch(self, index: PagedLockstep, num_tokens: int) -> Answer:
        if index.tails:
            return self._write_tails(index, num_tokens)
        members = len(index.members)
        at_most = (num_tokens // self.block_size + 1) * members
        if at_most > len(self._pool.free) and not self._make_room(index.needed(num_tokens)):
            return Refusal.LATER
        self._tables.live += num_tokens * members
        if num_tokens == 1:
            return first_step(index.grow_once(self._pool.free), self.block_size)
        return Grant(0, NO_OPS, index.grow(num_tokens, self._pool.free))

    def _write_tails(self, index: PagedLockstep, num_tokens: int) -> Answer:
        """Extend a batch in which last blocks may be shared; from then on nobody shares one."""
        writers = copying_writers(index.tails.values(), self._pool, self.block_size)
        if not self._make_room(index.needed(num_tokens) + len(writers)):
            return Refusal.LATER
        ops = self._tables.copy_tails(writers)
        index.tails.clear()
        slots, first, second = index.grow(num_tokens, self._pool.free)
        self._tables.live += num_tokens * len(index.members)
        return Grant(0, ops, Growth(slots + len(writers) * self.block_size, first, second))

    def _move_out(self, seqs: list[Sequence]) -> Answer:
        tables = [self._tables.of(seq) for seq in seqs]
        kept = [self._prefixes.shared(seq, table.num_tokens) for seq, table in zip(seqs, tables, strict=True)]
        answer = self._host.put(seqs, tables, kept)
        if isinstance(answer, Grant):
            for seq, keep in zip(seqs, kept, strict=True):
                self._tables.give_up(seq, len(keep))
        return answer

    def _move_in(self, seqs: list[Sequence]) -> Answer:
        source = self._host.blocks(seqs)
        # Every sequence may need a block in its next step; without room for that the group would be moved out again.
        spare = self._reserve() + len(seqs) if self._tables else 0
        if not self._make_room(len(source), spare):
            return Refusal.LATER
        kept = distinct([self._host.tables[seq.seq_id].kept for seq in seqs])
        tables, ops = self._host.fetch(seqs, source, self._pool)
        self._tables.update(zip((seq.seq_id for seq in seqs), tables, strict=True))
        self._tables.live += stored_tokens(tables, self.block_size) - self.block_size * len(kept)
        return Grant(0, ops)
