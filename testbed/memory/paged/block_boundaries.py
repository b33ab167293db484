"""Block boundaries: the steps at which the members of a batch need their next block, found without
walking the batch.
"""

from bisect import bisect_left
from collections.abc import Sequence as Row
from operator import itemgetter

from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.core.slots import Growth, growth_of, record
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables

FIRST = itemgetter(0)


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
        table, size, offset = self.tables.of(seq), self.size, seq.slots_offset
        blocks, residue = table.blocks, -offset % size
        members = self.due.get(residue)
        if members is None:
            self.due[residue] = {seq.seq_id: blocks}
        else:
            members[seq.seq_id] = blocks
        if blocks and blocks[-1] in self.pool.sharers and (offset + self.batch.extended) % size:
            self.tails[seq.seq_id] = table  # as `shares_tail`

    def removed(self, seq: Sequence) -> None:
        residue = -seq.slots_offset % self.size
        members = self.due[residue]
        del members[seq.seq_id]
        if not members:
            del self.due[residue]
        self.tails.pop(seq.seq_id, None)

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
        """grow(1), returning the number of slots taken."""
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
        if num_steps > 1 == size:
            return self._grow_by_tokens(num_steps)
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

    def _grow_by_tokens(self, num_steps: int) -> Growth:
        """`grow` for blocks of one token: each member takes one at every step."""
        members = self.due.get(0, {}).values()
        count = len(members)
        taken = self.pool.take(count * num_steps)
        for place, blocks in enumerate(members):
            blocks += taken[place::count]
        steps = count * num_steps
        first = steps * (num_steps - 1) // 2
        return record(Growth, (steps, first, first * (2 * num_steps - 1) // 3))

    def marked(self, num_steps: int, marks: Row[bool]) -> Growth:
        """The steps at which num_steps more steps will take the marked ones of the blocks that they
        take one after another.
        """
        taken, events = 0, []
        for step, members in self._in_turn(num_steps):
            end = taken + len(members)
            events.append((step, sum(marks[taken:end]) * self.size))
            taken = end
        return growth_of(events)

    def _in_turn(self, num_steps: int) -> list[tuple[int, dict[int, list[int]]]]:
        """The steps, of num_steps more, at which members need blocks, with these, in order."""
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
