"""Block boundaries: the steps at which the members of a batch need their next block, found without
walking the batch.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence as Row
from itertools import compress, count, repeat
from typing import TypeAlias

from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.core.slots import Growth, growth_at, record
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables

Member: TypeAlias = tuple[int, int, list[int]]  # residue, serial number of joining, blocks


class BlockIndex(BatchIndex):
    """Members in the order in which they need their next block, the same in each round of as many
    steps as a block has slots.

    The blocks of a member are full at the steps congruent to its residue, modulo the block size.
    `members` is sorted by residue, and then by joining. `tails` contains the tables of members
    whose partial last block was shared when they joined or forked, and may need a copy before the
    next write.
    """

    def __init__(self, batch: Batch, tables: Tables, pool: BlockPool) -> None:
        self.batch = batch
        self.tables = tables
        self.pool = pool
        self.size = tables.block_size
        self.members: list[Member] = []
        self.tails: dict[int, BlockTable] = {}
        self._by_id: dict[int, Member] = {}
        self._serial = count()

    def added(self, seq: Sequence) -> None:
        table, size, offset = self.tables.of(seq), self.size, seq.slots_offset
        blocks = table.blocks
        member = self._by_id[seq.seq_id] = -offset % size, next(self._serial), blocks
        insort(self.members, member)
        if blocks and blocks[-1] in self.pool.sharers and (offset + self.batch.extended) % size:
            self.tails[seq.seq_id] = table  # as `shares_tail`

    def removed(self, seq: Sequence) -> None:
        members = self.members
        del members[bisect_left(members, self._by_id.pop(seq.seq_id))]
        self.tails.pop(seq.seq_id, None)

    def needed(self, num_steps: int) -> int:
        """Blocks that num_steps more steps of all members take, without copy-on-write."""
        members, size = self.members, self.size
        rounds, rest = divmod(num_steps, size)
        now = self.batch.extended % size
        last = bisect_left(members, (now + rest,)) - bisect_left(members, (now,))
        if now + rest > size:
            last += bisect_left(members, (now + rest - size,))
        return rounds * len(members) + last

    def steps_within(self, num_blocks: int) -> int:
        """Steps that num_blocks blocks allow: whole rounds of a block for each member, or the most
        within one.
        """
        size, members = self.size, self.members
        if num_blocks >= len(members):
            return num_blocks // len(members) * size
        now = self.batch.extended % size
        lacks_block = (bisect_left(members, (now,)) + num_blocks) % len(members)
        return (members[lacks_block][0] - now) % size

    def step(self) -> int:
        """grow(1), returning the number of slots taken."""
        members, now, take = self.members, self.batch.extended % self.size, self.pool.free.pop
        first = bisect_left(members, (now,))
        end = bisect_left(members, (now + 1,), first)
        for _, _, blocks in members[first:end]:
            blocks.append(take())
        return (end - first) * self.size

    def grow(self, num_steps: int) -> Growth:
        """Append the blocks for num_steps more steps in their order, from the end of the free list,
        which has them.
        """
        size, now = self.size, self.batch.extended
        if num_steps > 1 == size:
            return self._grow_by_tokens(num_steps)
        take, taken, first, second = self.pool.free.pop, 0, 0, 0
        for start, due in self._rounds(num_steps):
            taken += len(due)
            for residue, _, blocks in due:
                blocks.append(take())
                step = start + (residue - now) % size
                first += step
                second += step * step
        return record(Growth, (taken * size, first * size, second * size))

    def _grow_by_tokens(self, num_steps: int) -> Growth:
        """`grow` for blocks of one token: each member takes one at every step."""
        num_members = len(self.members)
        steps = num_members * num_steps
        taken = self.pool.take(steps)
        for place, (_, _, blocks) in enumerate(self.members):
            blocks += taken[place::num_members]
        first = steps * (num_steps - 1) // 2
        return record(Growth, (steps, first, first * (2 * num_steps - 1) // 3))

    def marked(self, num_steps: int, marks: Row[bool]) -> Growth:
        """The steps at which num_steps more steps will take the marked ones of the blocks that they
        take one after another.
        """
        size, now = self.size, self.batch.extended
        steps = [
            start + (residue - now) % size
            for start, due in self._rounds(num_steps)
            for residue, _, _ in due
        ]
        return growth_at([*compress(steps, marks)], size)

    def _rounds(self, num_steps: int) -> list[tuple[int, list[Member]]]:
        """The members that need a block in num_steps more steps, in order, with the step at which
        each round begins; the last round may be a part of one.
        """
        members, size = self.members, self.size
        now, whole = self.batch.extended % size, num_steps - num_steps % size
        first, end = bisect_left(members, (now,)), now + num_steps - whole
        if end <= size:
            last = members[first : bisect_left(members, (end,), first)]
        else:
            last = members[first:] + members[: bisect_left(members, (end - size,))]
        if not whole:
            return [(0, last)]
        in_turn = members[first:] + members[:first]
        return [*zip(range(0, whole, size), repeat(in_turn)), (whole, last)]
