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
    Copy,
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
from testbed.memory.block_pool import BlockPool
from testbed.memory.block_table import BlockTable, PagedLockstep, first_step, moments
from testbed.memory.copy_on_write import copy_tails, copying_writers
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.memory.swap_space import HostTable, distinct, pair, share_repeated, stored_tokens, transfers


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
        self._host_pool = BlockPool(pool.num_host_slots // block_size)
        self._watermark = ceil(watermark * self._pool.num_blocks)
        self._tables: dict[int, BlockTable] = {}
        self._host_tables: dict[int, HostTable] = {}
        self._prefixes: dict[int, BlockTable] = {}
        self._num_pinned = 0
        self._lockstep: PagedLockstep | None = None
        self._live = 0

    def admit(self, seq: Sequence, num_tokens: int) -> Answer:
        return self._admit(seq, num_tokens, 0)

    def admit_all(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """The whole blocks of the prompt are shared, as they would be after a fork and a first write.

        Its partial last block is everybody's own, and computed by everybody: a copy would come before the iteration,
        when there is nothing to copy yet.
        """
        first, *others = seqs
        if not others:
            return super().admit_all(seqs, num_tokens)
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
        shared = self._prefix_blocks(seq, num_tokens)
        needed = ceil_div(num_tokens, self.block_size) - len(shared)
        if needed + more > self._capacity():
            return Refusal.NEVER
        if not self._make_room(needed, more + self._reserve()):
            return Refusal.LATER
        table = BlockTable(num_tokens, shared + self._pool.take(needed))
        self._tables[seq.seq_id] = table
        self._live += num_tokens - len(shared) * self.block_size
        return self._prefix_hit(seq, table, shared) if seq.prefix else GRANTED

    def extend(self, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
        if isinstance(seqs, Batch):
            index = self._lockstep
            if index is None or index.batch is not seqs:
                index = self._index(seqs)
            return self._extend_batch(index, num_tokens)
        tables = [self._table(seq) for seq in seqs]
        writers = copying_writers(tables, self._pool, self.block_size)
        missing = [ceil_div(t.num_tokens + num_tokens, self.block_size) - len(t.blocks) for t in tables]
        if not self._make_room(sum(missing) + len(writers)):
            return Refusal.LATER
        ops = self._copy(writers)
        events = [(len(writers), 0, 0)]
        for table, count in zip(tables, missing, strict=True):
            events.append(moments(-table.num_tokens % self.block_size, count, self.block_size))
            table.blocks.extend(self._pool.take(count))
            table.offset += num_tokens
        self._live += num_tokens * len(tables)
        return Grant(0, ops, Growth(*(self.block_size * sum(column) for column in zip(*events, strict=True))))

    def release(self, seq: Sequence) -> None:
        if seq.seq_id in self._host_tables:
            host = self._host_tables.pop(seq.seq_id)
            self._host_pool.put(host.blocks)
            self._pool.put(host.kept)
        else:
            table = self._table(seq)
            self._give_back(table, table.blocks)
            del self._tables[seq.seq_id]

    def table(self, seq: Sequence) -> list[Extent]:
        return [Extent(block * self.block_size, self.block_size) for block in self._table(seq).blocks]

    def usage(self) -> Usage:
        size = self.block_size
        total, free = self._pool.num_blocks * size, len(self._pool.free) * size
        held = total - free
        return Usage(total, self._live, held, held, 0, free, free, self._pool.num_saved * size)

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
        table = self._table(parent)
        if child.seq_id in self._tables:
            self._replace(self._tables[child.seq_id], table)
        else:
            self._pool.share(table.blocks)
            self._tables[child.seq_id] = BlockTable(table.num_tokens, list(table.blocks))
        if self._lockstep is not None:
            for seq in (parent, child):
                if seq.seq_id in self._lockstep.members:
                    self._lockstep.watch_tail(seq.seq_id, self._tables[seq.seq_id])
        return NO_OPS

    def move(self, seqs: list[Sequence], tier: Tier) -> Answer:
        return self._move_out(seqs) if tier is Tier.HOST else self._move_in(seqs)

    def register_prefix(self, num_tokens: int) -> None:
        """Pin num_tokens tokens; sequences whose `prefix` is num_tokens share their whole blocks from then on."""
        needed = ceil_div(num_tokens, self.block_size)
        if not self._make_room(needed):
            raise ValueError(f"a prefix of {num_tokens} tokens needs {needed} blocks; {len(self._pool.free)} are free")
        self._prefixes[num_tokens] = BlockTable(num_tokens, self._pool.take(needed))
        self._num_pinned += needed
        self._live += num_tokens

    def unowned(self) -> Unowned:
        size = self.block_size
        pinned = (block for table in self._prefixes.values() for block in table.blocks)
        return Unowned(pinned=tuple(Extent(block * size, size) for block in pinned))

    def check(self) -> None:
        tables = [*self._tables.values(), *self._prefixes.values()]
        kept = [host.kept for host in self._host_tables.values()]
        self._pool.check([*(table.blocks for table in tables), *kept])
        self._host_pool.check(host.blocks for host in self._host_tables.values())
        assert self._live == stored_tokens(tables, self.block_size), "live slots are miscounted"
        for seq_id, table in self._tables.items():
            assert len(table.blocks) == ceil_div(table.num_tokens, self.block_size), f"table of sequence {seq_id}"

    def _table(self, seq: Sequence) -> BlockTable:
        try:
            return self._tables[seq.seq_id]
        except KeyError:
            raise KeyError(f"{seq} is not on the device: admit it, or move it back, first") from None

    def _index(self, batch: Batch) -> PagedLockstep:
        if self._lockstep is None or self._lockstep.batch is not batch:
            index = PagedLockstep.on(batch, self._tables)
            self._lockstep = index or PagedLockstep(batch, self._tables, self._pool, self.block_size)
        return self._lockstep

    def _capacity(self) -> int:
        return self._pool.num_blocks - self._num_pinned

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
        self._live += num_tokens * members
        if num_tokens == 1:
            return first_step(index.grow_once(self._pool.free), self.block_size)
        return Grant(0, NO_OPS, index.grow(num_tokens, self._pool.free))

    def _write_tails(self, index: PagedLockstep, num_tokens: int) -> Answer:
        """Extend a batch in which last blocks may be shared; from then on nobody shares one."""
        writers = copying_writers(index.tails.values(), self._pool, self.block_size)
        if not self._make_room(index.needed(num_tokens) + len(writers)):
            return Refusal.LATER
        ops = self._copy(writers) if writers else NO_OPS
        index.tails.clear()
        slots, first, second = index.grow(num_tokens, self._pool.free)
        self._live += num_tokens * len(index.members)
        return Grant(0, ops, Growth(slots + len(writers) * self.block_size, first, second))

    def _copy(self, writers: list[BlockTable]) -> Ops:
        copies, num_tokens = copy_tails(writers, self._pool, self.block_size)
        self._live += num_tokens
        return Ops(copies)

    def _give_back(self, table: BlockTable, blocks: list[int]) -> None:
        """Drop these blocks, the end of a table, and the stored tokens of those that nobody else holds."""
        padding = len(table.blocks) * self.block_size - table.num_tokens
        if padding and self._pool.sharers and self._pool.ref_count(table.blocks[-1]) > 1:
            padding = 0
        self._live -= self._pool.put(blocks) * self.block_size - padding

    def _replace(self, table: BlockTable, parent: BlockTable) -> None:
        """`table` becomes the parent's, of equal length; what both share already is left alone."""
        if table.num_tokens != parent.num_tokens:
            raise ValueError(f"a beam of {table.num_tokens} tokens cannot go on with {parent.num_tokens} of another")
        # Sharing begins at the root: the last block that both have in common has only common ones before it.
        common = len(table.blocks)
        while common and table.blocks[common - 1] != parent.blocks[common - 1]:
            common -= 1
        self._give_back(table, table.blocks[common:])
        self._pool.share(parent.blocks[common:])
        table.blocks[common:] = parent.blocks[common:]

    def _prefix_blocks(self, seq: Sequence, num_tokens: int) -> list[int]:
        """The whole blocks of the registered prefix of `seq` among its first num_tokens tokens."""
        prefix = self._prefixes.get(seq.prefix) if self._prefixes else None
        return prefix.blocks[: min(seq.prefix, num_tokens) // self.block_size] if prefix else []

    def _prefix_hit(self, seq: Sequence, table: BlockTable, shared: list[int]) -> Grant:
        """Share the whole blocks; the remainder of the prefix is copied, because the sequence writes behind it."""
        prefix = self._prefixes.get(seq.prefix)
        if prefix is None:
            return GRANTED
        self._pool.share(shared)
        cached, stored = min(seq.prefix, table.num_tokens), len(shared) * self.block_size
        if cached == stored:
            return Grant(cached)
        target = table.blocks[len(shared)] * self.block_size
        source = prefix.blocks[len(shared)] * self.block_size
        return Grant(cached, Ops((Copy(source, target, cached - stored),)))

    def _move_out(self, seqs: list[Sequence]) -> Answer:
        tables = [self._table(seq) for seq in seqs]
        kept = [self._prefix_blocks(seq, table.num_tokens) for seq, table in zip(seqs, tables, strict=True)]
        moving = [table.blocks[len(keep) :] for table, keep in zip(tables, kept, strict=True)]
        source = distinct(moving)
        if len(source) > len(self._host_pool.free):
            return Refusal.LATER
        target = self._host_pool.take(len(source))
        moved = pair(moving, source, target)
        share_repeated(moved, self._host_pool)
        for seq, table, keep, old, new in zip(seqs, tables, kept, moving, moved, strict=True):
            self._host_tables[seq.seq_id] = HostTable(table.num_tokens, keep, new)
            self._give_back(table, old)
            del self._tables[seq.seq_id]
        return Grant(0, Ops(swap_out=transfers(source, target, self.block_size)))

    def _move_in(self, seqs: list[Sequence]) -> Answer:
        tables = [self._host_tables[seq.seq_id] for seq in seqs]
        moving = [table.blocks for table in tables]
        source = distinct(moving)
        # Every sequence may need a block in its next step; without room for that the group would be moved out again.
        spare = self._reserve() + len(seqs) if self._tables else 0
        if not self._make_room(len(source), spare):
            return Refusal.LATER
        target = self._pool.take(len(source))
        moved = pair(moving, source, target)
        share_repeated(moved, self._pool)
        for seq, table, new in zip(seqs, tables, moved, strict=True):
            self._tables[seq.seq_id] = BlockTable(table.num_tokens, table.kept + new)
            self._host_pool.put(table.blocks)
            del self._host_tables[seq.seq_id]
        stored = stored_tokens([self._tables[seq.seq_id] for seq in seqs], self.block_size)
        self._live += stored - self.block_size * len(distinct([table.kept for table in tables]))
        return Grant(0, Ops(swap_in=transfers(source, target, self.block_size)))
