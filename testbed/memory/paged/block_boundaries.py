"""Block boundaries: the steps at which the members of a batch need their next block, found without
walking the batch.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Row
from itertools import compress, count
from typing import TypeAlias

from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.core.slots import Growth, growth_at, record
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables

Member: TypeAlias = tuple[int, list[int]]  # its residue and its blocks


class BlockIndex(BatchIndex):
    """Members in the order in which they need their next block, the same in each round of as many
    steps as a block has slots.

    The blocks of a member are full at the steps congruent to its residue, modulo the block size.
    `residues` is sorted, members of one residue by joining; `members` has each residue with the
    blocks of the member, in the same order. `tails` contains the tables of members whose partial
    last block was shared when they joined or forked, and may need a copy before the next write.
    `lacking` is the number of blocks that the next step requires, if it was refused for them and no
    member has joined or left since; else 0.
    """

    def __init__(self, batch: Batch, tables: Tables, pool: BlockPool) -> None:
        self.batch = batch
        self.tables = tables
        self.pool = pool
        self.size = tables.block_size
        self.residues: list[int] = []
        self.members: list[Member] = []
        self.tails: dict[int, BlockTable] = {}
        self.lacking = 0
        self._serials: list[int] = []  # of joining, in the order of `residues`
        self._by_id: dict[int, tuple[int, int]] = {}  # residue and serial number
        self._serial = count()

    def added(self, seq: Sequence) -> None:
        table, size, offset = self.tables.of(seq), self.size, seq.slots_offset
        blocks, residue, serial = table.blocks, -offset % size, next(self._serial)
        self._by_id[seq.seq_id] = residue, serial
        self.lacking = 0
        place = bisect_right(self.residues, residue)
        self.residues.insert(place, residue)
        self.members.insert(place, (residue, blocks))
        self._serials.insert(place, serial)
        if blocks and blocks[-1] in self.pool.sharers and (offset + self.batch.extended) % size:
            self.tails[seq.seq_id] = table  # the next token would be written there

    def removed(self, seq: Sequence) -> None:
        residues, (residue, serial) = self.residues, self._by_id.pop(seq.seq_id)
        first = bisect_left(residues, residue)
        place = bisect_left(self._serials, serial, first, bisect_right(residues, residue, first))
        self.lacking = 0
        del residues[place], self.members[place], self._serials[place]
        self.tails.pop(seq.seq_id, None)

    def needed(self, num_steps: int) -> int:
        """Blocks that num_steps more steps of all members take, without copy-on-write."""
        residues, size = self.residues, self.size
        rounds, rest = divmod(num_steps, size)
        now = self.batch.extended % size
        last = bisect_left(residues, now + rest) - bisect_left(residues, now)
        if now + rest > size:
            last += bisect_left(residues, now + rest - size)
        return rounds * len(residues) + last

    def steps_within(self, num_blocks: int) -> int:
        """Steps that num_blocks blocks allow: whole rounds of a block for each member, or the most
        within one.
        """
        size, residues = self.size, self.residues
        if num_blocks >= len(residues):
            return num_blocks // len(residues) * size
        now = self.batch.extended % size
        lacks_block = (bisect_left(residues, now) + num_blocks) % len(residues)
        return (residues[lacks_block] - now) % size

    def step(self) -> int:
        """grow(1), returning the number of slots taken."""
        residues, now, take = self.residues, self.batch.extended % self.size, self.pool.free.pop
        first = bisect_left(residues, now)
        end = bisect_right(residues, now, first)
        for _, blocks in self.members[first:end]:
            blocks.append(take())
        return (end - first) * self.size

    def grow(self, num_steps: int) -> Growth:
        """Append the blocks for num_steps more steps in their order, from the end of the free list,
        which has them.
        """
        size = self.size
        if num_steps > 1 == size:
            return self._grow_by_tokens(num_steps)
        take, taken, steps, squared = self.pool.free.pop, 0, 0, 0
        for begin, members in self._rounds(num_steps):
            taken += len(members)
            for residue, blocks in members:
                blocks.append(take())
                step = begin + residue
                steps += step
                squared += step * step
        return record(Growth, (taken * size, steps * size, squared * size))

    def _grow_by_tokens(self, num_steps: int) -> Growth:
        """`grow` for blocks of one token: each member takes one at every step."""
        num_members = len(self.members)
        steps = num_members * num_steps
        taken = self.pool.take(steps)
        for place, (_, blocks) in enumerate(self.members):
            blocks += taken[place::num_members]
        first = steps * (num_steps - 1) // 2
        return record(Growth, (steps, first, first * (2 * num_steps - 1) // 3))

    def marked(self, num_steps: int, marks: Row[bool]) -> Growth:
        """The steps at which num_steps more steps will take the marked ones of the blocks that they
        take one after another.
        """
        if num_steps == 1:
            return record(Growth, (sum(marks[: self.needed(1)]) * self.size, 0, 0))
        steps = [
            begin + residue for begin, members in self._rounds(num_steps) for residue, _ in members
        ]
        return growth_at([*compress(steps, marks)], self.size)

    def _rounds(self, num_steps: int) -> list[tuple[int, list[Member]]]:
        """The members that need a block in num_steps more steps, in order, by rounds, each with the
        step at which it begins, which is before now in the first one.
        """
        residues, members, size = self.residues, self.members, self.size
        begin = -(self.batch.extended % size)
        first, end, rounds = bisect_left(residues, -begin), num_steps - begin, []
        while end > size:
            rounds.append((begin, members[first:] if first else members))
            begin, first, end = begin + size, 0, end - size
        rounds.append((begin, members[first : bisect_left(residues, end, first)]))
        return rounds
