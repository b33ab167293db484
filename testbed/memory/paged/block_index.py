"""The members of a batch that need a block at a step, found without iterating over the batch."""

from collections.abc import Sequence as Row

from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.core.slots import Growth, growth_of, record
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_tables import BlockTable, Tables


class BlockIndex(BatchIndex):
    """Members by the step, modulo the block size, at which they need their next block.

    due[r] contains the blocks of the members whose blocks are full at the steps congruent to r.
    `tails` contains the tables of members whose partial last block was shared when they joined or
    forked, and may need a copy before the next write.
    """

    def __init__(self, batch: Batch, tables: Tables, pool: BlockPool) -> None:
        self.batch = batch
        self.tables = tables
        self.pool = pool
        self.due: list[dict[int, list[int]]] = [{} for _ in range(tables.block_size)]
        self.tails: dict[int, BlockTable] = {}

    def added(self, seq: Sequence) -> None:
        table = self.tables.of(seq)
        self.due[-seq.slots_offset % len(self.due)][seq.seq_id] = table.blocks
        if (
            self.pool.sharers
            and self.pool.ref_count(table.blocks[-1]) > 1
            and seq.num_slots % len(self.due)
        ):
            self.forked(seq)

    def removed(self, seq: Sequence) -> None:
        del self.due[-seq.slots_offset % len(self.due)][seq.seq_id]
        self.tails.pop(seq.seq_id, None)

    def forked(self, seq: Sequence) -> None:
        self.tails[seq.seq_id] = self.tables.of(seq)

    def needed(self, num_steps: int) -> int:
        """Blocks that num_steps more steps of all members take, without copy-on-write."""
        due, now = self.due, self.batch.extended % len(self.due)
        if num_steps == 1:
            return len(due[now])
        rounds, rest = divmod(num_steps, len(due))
        return rounds * len(self.batch.sequences) + sum(map(len, (due[now:] + due[:now])[:rest]))

    def steps_within(self, num_blocks: int) -> int:
        """Steps that num_blocks blocks allow: whole rounds of a block for each member, or the most
        within one.
        """
        due, start = self.due, self.batch.extended
        size, rounds = len(due), num_blocks // len(self.batch.sequences)
        if rounds:
            return rounds * size
        steps = 0
        while (num_blocks := num_blocks - len(due[(start + steps) % size])) >= 0:
            steps += 1
        return steps

    def step(self) -> int:
        """The same as grow(1), but returns the number of slots taken."""
        due, take = self.due[self.batch.extended % len(self.due)], self.pool.free.pop
        for blocks in due.values():
            blocks.append(take())
        return len(due) * len(self.due)

    def grow(self, num_steps: int) -> Growth:
        """Append the blocks for num_steps more steps in their order, from the end of the free list,
        which has them.
        """
        free, size, now = self.pool.free, len(self.due), self.batch.extended % len(self.due)
        num_free, take, first, second = len(free), free.pop, 0, 0
        for step in range(num_steps):
            members = self.due[(now + step) % size]
            if members:
                for blocks in members.values():
                    blocks.append(take())
                weight = len(members) * step
                first += weight
                second += weight * step
        return record(Growth, ((num_free - len(free)) * size, first * size, second * size))

    def marked(self, num_steps: int, marks: Row[bool]) -> Growth:
        """When num_steps more steps will take the marked ones of the blocks that they take one
        after another.
        """
        size, now = len(self.due), self.batch.extended % len(self.due)
        in_turn = [
            (step, len(members))
            for step, members in enumerate(self.due[now:] + self.due[:now])
            if members
        ]
        taken, events = 0, list[tuple[int, int]]()
        for begun in range(0, num_steps, size):
            for step, count in in_turn:
                if begun + step < num_steps:
                    events.append((begun + step, sum(marks[taken : taken + count]) * size))
                    taken += count
        return growth_of(events)
