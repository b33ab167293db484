"""Block tables of sequences and registered prefixes: copy-on-write by blocks (section 4.4, Fig. 8),
and the steps at which the members of a batch cross a block boundary, found without walking it.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Row
from operator import itemgetter
from typing import NoReturn

from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.core.slots import NO_OPS, Copy, Growth, Ops, ceil_div, growth_of, record
from testbed.memory.paged.block_pool import BlockPool

FIRST = itemgetter(0)


class BlockTable:
    """The blocks of one sequence in order, enough for its num_slots; the first `pinned` are a
    registered prefix.
    """

    __slots__ = ("blocks", "pinned", "seq")

    def __init__(self, seq: Sequence, blocks: list[int], pinned: int = 0) -> None:
        self.seq = seq
        self.blocks = blocks
        self.pinned = pinned


class Tables:
    """Block tables by sequence id, of the device or the host.

    `live` counts the slots of `pool` that store a token, shared ones once. `prefixes` are the
    registered ones (section 4.4), pinned blocks by length. Sequences with a prefix share its whole
    blocks. Each copies the partial last one, because it writes its next tokens there, and the one
    with the last prompt token, which it always computes.
    """

    __slots__ = ("block_size", "held", "live", "pool", "prefixes")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.held: dict[int, BlockTable] = {}
        self.prefixes: dict[int, list[int]] = {}
        self.pool = pool
        self.block_size = block_size
        self.live = 0

    def of(self, seq: Sequence) -> BlockTable:
        return self.held.get(seq.seq_id) or absent(seq)

    def shares_tail(self, seq: Sequence) -> bool:
        """Whether others have its last block too, in which its next token would be written."""
        sharers = self.pool.sharers
        return self.of(seq).blocks[-1] in sharers and seq.num_slots % self.block_size > 0

    def whole_prefix(self, seq: Sequence) -> list[int]:
        """The whole blocks of the registered prefix of `seq`; the sequence never writes to them."""
        return self.prefixes[seq.registered_prefix][: self._num_whole(seq)]

    def rest_of_prefix(self, seq: Sequence, blocks: list[int]) -> Ops:
        """The copy of the rest of the prefix to `blocks`, the blocks of `seq`."""
        size, last = self.block_size, self._num_whole(seq)
        if seq.registered_prefix == last * size:
            return NO_OPS
        return Ops(
            (Copy(self.prefixes[seq.registered_prefix][last] * size, blocks[last] * size, size),)
        )

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Share the parent's blocks with `child`, which first drops the blocks that it has."""
        table, own = self.of(parent), self.held.get(child.seq_id)
        if own is not None:
            self._replace(own, table)
        else:
            self.pool.share(table.blocks)
            self.held[child.seq_id] = BlockTable(child, list(table.blocks), table.pinned)

    def give_up(self, seq: Sequence, kept: int = 0) -> None:
        """Remove a sequence's table; its first `kept` blocks keep their reference."""
        self._drop_end(self.of(seq), kept)
        del self.held[seq.seq_id]

    def receive(self, tables: list[BlockTable]) -> tuple[Copy, ...]:
        """Copy tables of another pool to free blocks, with the same sharing: a transfer for each
        block but pinned ones.

        Pinned blocks stay on the device, also of a sequence on the host.
        """
        source = moving(tables)
        target_of = dict(zip(source, self.pool.take(len(source)), strict=True))
        size, seen, stored = self.block_size, set[int](), list[tuple[int, list[int]]]()
        for table in tables:
            moved = [target_of[block] for block in table.blocks[table.pinned :]]
            self.pool.share(block for block in moved if block in seen)
            seen.update(moved)
            stored.append((table.seq.num_slots - table.pinned * size, moved))
            blocks = table.blocks[: table.pinned] + moved
            self.held[table.seq.seq_id] = BlockTable(table.seq, blocks, table.pinned)
        self.live += stored_tokens(stored, size)
        return tuple([Copy(src * size, dst * size, size) for src, dst in target_of.items()])

    def cut(self, seq: Sequence, num_tokens: int) -> None:
        """Keep the blocks of a sequence's first num_tokens tokens."""
        table, kept = self.of(seq), ceil_div(num_tokens, self.block_size)
        table.pinned = min(table.pinned, num_tokens // self.block_size)
        dropped, padding = seq.num_slots - num_tokens, kept * self.block_size - num_tokens
        if kept < len(table.blocks):
            self._drop_end(table, kept)
            del table.blocks[kept:]
            dropped = padding
        if self.pool.ref_count(table.blocks[-1]) == 1:
            self.live -= dropped

    def copying_writers(self, tails: Iterable[BlockTable]) -> list[BlockTable]:
        """The tables that must copy a partial last block before a write: all writers of a shared
        one but the last.
        """
        writers: list[BlockTable] = []
        counts: dict[int, int] = {}
        sharers = self.pool.sharers
        for table in tails:
            tail = table.blocks[-1]
            count = counts.get(tail) or sharers.get(tail, 1)
            if count > 1:
                writers.append(table)
                counts[tail] = count - 1
        return writers

    def copy_tails(self, writers: Collection[BlockTable]) -> Ops:
        """Replace each writer's last block by a free one; the copies are of whole blocks, as in the
        2023 system.
        """
        if not writers:
            return NO_OPS
        size, pool = self.block_size, self.pool
        copies: list[Copy] = []
        for table in writers:
            source, target = table.blocks[-1], pool.free.pop()
            pool.drop(source)
            table.blocks[-1] = target
            copies.append(Copy(source * size, target * size, size))
            self.live += table.seq.num_slots % size
        return Ops(tuple(copies))

    def _num_whole(self, seq: Sequence) -> int:
        return min(seq.registered_prefix, seq.prompt_len - 1) // self.block_size

    def _replace(self, table: BlockTable, parent: BlockTable) -> None:
        """Replace the blocks of `table` by the parent's, of equal length; common leading blocks do
        not change.
        """
        if table.seq.num_slots != parent.seq.num_slots:
            raise ValueError(
                f"a beam of {table.seq.num_slots} tokens cannot continue from a beam of "
                f"{parent.seq.num_slots}"
            )
        # Sharing begins at the first block: all blocks before the last common one are common too.
        own, others = table.blocks, parent.blocks
        common = len(own)
        while common and own[common - 1] != others[common - 1]:
            common -= 1
        self._drop_end(table, common)
        own[common:] = others[common:]
        self.pool.share(own[common:])

    def _drop_end(self, table: BlockTable, first: int) -> None:
        """Drop the blocks from index `first` on, and the stored tokens of those without another
        reference.
        """
        blocks, padding = table.blocks, len(table.blocks) * self.block_size - table.seq.num_slots
        if padding and self.pool.sharers and self.pool.ref_count(blocks[-1]) > 1:
            padding = 0
        self.live -= self.pool.put(blocks[first:] if first else blocks) * self.block_size - padding


class BlockIndex(BatchIndex):
    """Members by the step, modulo the block size, at which they need their next block.

    due[r] contains the blocks of the members whose blocks are full at the steps congruent to r,
    for each r with such a member. `tails` contains the tables of members whose partial last block
    was shared when they joined or forked, and may need a copy before the next write.
    """

    def __init__(self, batch: Batch, tables: Tables, pool: BlockPool) -> None:
        self.batch = batch
        self.tables = tables
        self.pool = pool
        self.size = tables.block_size
        self.due: dict[int, dict[int, list[int]]] = {}
        self.tails: dict[int, BlockTable] = {}

    def added(self, seq: Sequence) -> None:
        table, residue = self.tables.of(seq), -seq.slots_offset % self.size
        members = self.due.get(residue)
        if members is None:
            self.due[residue] = {seq.seq_id: table.blocks}
        else:
            members[seq.seq_id] = table.blocks
        if self.pool.sharers and self.tables.shares_tail(seq):
            self.forked(seq)

    def removed(self, seq: Sequence) -> None:
        residue = -seq.slots_offset % self.size
        members = self.due[residue]
        del members[seq.seq_id]
        if not members:
            del self.due[residue]
        self.tails.pop(seq.seq_id, None)

    def forked(self, seq: Sequence) -> None:
        self.tails[seq.seq_id] = self.tables.of(seq)

    def needed(self, num_steps: int) -> int:
        """Blocks that num_steps more steps of all members take, without copy-on-write."""
        size, now = self.size, self.batch.extended
        if num_steps == 1:
            return len(self.due.get(now % size, ()))
        rounds, rest = divmod(num_steps, size)
        last = [len(members) for r, members in self.due.items() if (r - now) % size < rest]
        return rounds * len(self.batch.sequences) + sum(last)

    def steps_within(self, num_blocks: int) -> int:
        """Steps that num_blocks blocks allow: whole rounds of a block for each member, or the most
        within one.
        """
        size, rounds = self.size, num_blocks // len(self.batch.sequences)
        if rounds:
            return rounds * size
        for step, members in self._in_turn(size):
            num_blocks -= len(members)
            if num_blocks < 0:
                return step
        raise AssertionError("a round takes a block for each member")

    def step(self) -> int:
        """The same as grow(1), but returns the number of slots taken."""
        members = self.due.get(self.batch.extended % self.size)
        if members is None:
            return 0
        take = self.pool.free.pop
        for blocks in members.values():
            blocks.append(take())
        return len(members) * self.size

    def grow(self, num_steps: int) -> Growth:
        """Append the blocks for num_steps more steps in their order, from the end of the free list,
        which has them.
        """
        due, size, now = self.due, self.size, self.batch.extended
        take, taken, first, second = self.pool.free.pop, 0, 0, 0
        residues = sorted(due)
        first_due = bisect_left(residues, now % size)
        in_turn = residues[first_due:] + residues[:first_due]
        for start in range(0, num_steps, size):
            for residue in in_turn:
                step = start + (residue - now) % size
                if step >= num_steps:
                    break
                members = due[residue]
                for blocks in members.values():
                    blocks.append(take())
                count = len(members)
                taken += count
                first += (moment := count * step)
                second += moment * step
        return record(Growth, (taken * size, first * size, second * size))

    def marked(self, num_steps: int, marks: Row[bool]) -> Growth:
        """When num_steps more steps will take the marked ones of the blocks that they take one
        after another.
        """
        taken, events = 0, list[tuple[int, int]]()
        for step, members in self._in_turn(num_steps):
            end = taken + len(members)
            events.append((step, sum(marks[taken:end]) * self.size))
            taken = end
        return growth_of(events)

    def _in_turn(self, num_steps: int) -> list[tuple[int, dict[int, list[int]]]]:
        """Of num_steps more steps those at which members need blocks, with these, in order."""
        due, size, now = self.due, self.size, self.batch.extended
        in_turn = []
        if num_steps <= len(due):  # fewer steps than residues: no residue repeats
            for step in range(num_steps):
                members = due.get((now + step) % size)
                if members is not None:
                    in_turn.append((step, members))
            return in_turn
        for residue, members in due.items():
            for step in range((residue - now) % size, num_steps, size):
                in_turn.append((step, members))
        in_turn.sort(key=FIRST)  # no two steps are equal
        return in_turn


def absent(seq: Sequence) -> NoReturn:
    raise KeyError(f"{seq}: is not on the device (admit it, or move it back, first)")


def moving(tables: Iterable[BlockTable]) -> list[int]:
    """The blocks that move with these tables, shared ones once."""
    return list(dict.fromkeys(block for table in tables for block in table.blocks[table.pinned :]))


def stored_tokens(tables: Iterable[tuple[int, list[int]]], block_size: int) -> int:
    """Slots that store a token, shared ones once, for pairs of (tokens, blocks of the table)."""
    filled = dict[int, int]()
    for num_tokens, blocks in tables:
        for i, block in enumerate(blocks):
            filled[block] = max(filled.get(block, 0), min(block_size, num_tokens - i * block_size))
    return sum(filled.values())
