"""Which members of a batch need a block at which step, found without walking the batch."""

from testbed.core.batch import Batch, BatchIndex
from testbed.core.sequence import Sequence
from testbed.core.slots import NO_GROWTH, Growth, growth_of
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_tables import BlockTable, Tables


class BlockIndex(BatchIndex):
    """Members by the step, modulo the block size, at which they need their next block.

    due[r] holds the blocks of the members whose blocks are full at the steps congruent to r. `tails` holds the tables
    of members whose partial last block was shared when they joined or forked, and may have to be copied before the
    next write.
    """

    def __init__(self, batch: Batch, tables: Tables, pool: BlockPool) -> None:
        self.batch = batch
        self.tables = tables
        self.pool = pool
        self.due: list[dict[int, list[int]]] = [{} for _ in range(tables.block_size)]
        self.tails: dict[int, BlockTable] = {}

    def joined(self, seq: Sequence) -> None:
        table = self.tables[seq.seq_id]
        self.due[-seq.room_offset % len(self.due)][seq.seq_id] = table.blocks
        if self.pool.sharers and self.pool.ref_count(table.blocks[-1]) > 1:
            self.forked(seq)

    def left(self, seq: Sequence) -> None:
        del self.due[-seq.room_offset % len(self.due)][seq.seq_id]
        self.tails.pop(seq.seq_id, None)

    def forked(self, seq: Sequence) -> None:
        """A member shares its last block from now on."""
        if seq.room % len(self.due):
            self.tails[seq.seq_id] = self.tables[seq.seq_id]

    def needed(self, num_steps: int) -> int:
        """Blocks that num_steps more steps of all members take, copies on write aside."""
        due, start = self.due, self.batch.extended
        size = len(due)
        rounds, rest = divmod(num_steps, size)
        return rounds * len(self.batch.sequences) + sum(len(due[step % size]) for step in range(start, start + rest))

    def steps_within(self, num_blocks: int) -> int:
        """Steps that num_blocks blocks allow: whole rounds of a block for each member, or the most within one."""
        due, start = self.due, self.batch.extended
        size, rounds = len(due), num_blocks // len(self.batch.sequences)
        if rounds:
            return rounds * size
        steps = 0
        while (num_blocks := num_blocks - len(due[(start + steps) % size])) >= 0:
            steps += 1
        return steps

    def grow(self, num_steps: int) -> Growth:
        """Hand out the blocks for num_steps more steps from the end of the free ones, which must be enough."""
        size, take, turn = len(self.due), self.pool.free.pop, self.batch.extended % len(self.due)
        if num_steps == 1:
            for blocks in self.due[turn].values():
                blocks.append(take())
            return Growth(len(self.due[turn]) * size) if self.due[turn] else NO_GROWTH
        count = first = second = 0
        for turn, tables in enumerate((self.due[turn:] + self.due[:turn])[:num_steps]):
            if tables:
                members = len(tables)
                for step in range(turn, num_steps, size):
                    for blocks in tables.values():
                        blocks.append(take())
                    count += members
                    first += members * step
                    second += members * step * step
        return Growth(count * size, first * size, second * size)

    def beyond(self, num_steps: int, num_blocks: int) -> Growth:
        """When num_steps more steps will take blocks after the first num_blocks of them."""
        size, start, taken = len(self.due), self.batch.extended, 0
        events = list[tuple[int, int]]()
        for step in range(num_steps):
            before, taken = max(taken, num_blocks), taken + len(self.due[(start + step) % size])
            events.append((step, max(taken - before, 0) * size))
        return growth_of(events)
