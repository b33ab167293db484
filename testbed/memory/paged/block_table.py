"""Block tables, and the index that finds the ones that need a block without walking the batch."""

from functools import lru_cache

from testbed.core.batch import Batch
from testbed.core.slots import Grant, Growth
from testbed.memory.lockstep import Holding, Lockstep
from testbed.memory.paged.block_pool import BlockPool


class BlockTable(Holding):
    """The blocks of one sequence in order; always as many as its tokens need."""

    __slots__ = ("blocks",)

    def __init__(self, num_tokens: int, blocks: list[int]) -> None:
        super().__init__(num_tokens)
        self.blocks = blocks


class PagedLockstep(Lockstep[BlockTable]):
    """Members by the step, modulo the block size, at which they need their next block.

    due[r] holds the members whose blocks are full at the steps congruent to r. `tails` holds members whose partial
    last block was shared when they joined or forked, and may have to be copied before the next write.
    """

    def __init__(self, batch: Batch, holdings: dict[int, BlockTable], pool: BlockPool, block_size: int) -> None:
        self.block_size = block_size
        self.pool = pool
        self.due: list[dict[int, BlockTable]] = [{} for _ in range(block_size)]
        self.tails: dict[int, BlockTable] = {}
        super().__init__(batch, holdings)

    def enter(self, seq_id: int, holding: BlockTable) -> None:
        self.due[-holding.offset % self.block_size][seq_id] = holding
        partial = self.pool.sharers and holding.num_tokens % self.block_size
        if partial and self.pool.ref_count(holding.blocks[-1]) > 1:
            self.tails[seq_id] = holding

    def leave(self, seq_id: int, holding: BlockTable) -> None:
        del self.due[-holding.offset % self.block_size][seq_id]
        self.tails.pop(seq_id, None)

    def forked(self, *seq_ids: int) -> None:
        """These sequences, members or not, share their last block from now on."""
        for seq_id in seq_ids:
            holding = self.members.get(seq_id)
            if holding is not None and holding.num_tokens % self.block_size:
                self.tails[seq_id] = holding

    def needed(self, num_steps: int) -> int:
        """Blocks that num_steps more steps of all members take, copies on write aside."""
        size, start, due = self.block_size, self.clock.steps, self.due
        if num_steps == 1:
            return len(due[start % size])
        rounds, rest = divmod(num_steps, size)
        return rounds * len(self.members) + sum(len(due[step % size]) for step in range(start, start + rest))

    def steps_within(self, num_blocks: int, limit: int) -> int:
        """The most steps, at most `limit`, that num_blocks blocks allow."""
        size, members = self.block_size, len(self.members)
        if (limit // size + 1) * members <= num_blocks:
            return limit
        rounds, left = divmod(num_blocks, members)
        steps = rounds * size
        # Any `size` steps in a row need one block a member, so after whole rounds at most one more round is walked.
        while steps < limit:
            left -= len(self.due[(self.clock.steps + steps) % size])
            if left < 0:
                return steps
            steps += 1
        return limit

    def grow_once(self, free: list[int]) -> int:
        """Hand out the blocks for one more step from the end of `free`; how many they are."""
        due = self.due[self.clock.steps % self.block_size]
        self.clock.steps += 1
        for table in due.values():
            table.blocks.append(free.pop())
        return len(due)

    def grow(self, num_steps: int, free: list[int]) -> Growth:
        """Hand out the blocks for num_steps more steps from the end of `free`, which must hold enough of them."""
        size, start = self.block_size, self.clock.steps
        self.clock.steps = start + num_steps
        turn, take = start % size, free.pop
        slots = first = second = 0
        for step, due in enumerate((self.due[turn:] + self.due[:turn])[:num_steps]):
            if not due:
                continue
            if step + size >= num_steps:
                for table in due.values():
                    table.blocks.append(take())
                count, total, squares = 1, step, step * step
            else:
                count = (num_steps - step - 1) // size + 1
                for table in due.values():
                    table.blocks += free[: -count - 1 : -1]
                    del free[-count:]
                count, total, squares = moments(step, count, size)
            members = len(due)
            slots += members * count
            first += members * total
            second += members * squares
        return Growth(slots * size, first * size, second * size)


@lru_cache(1 << 16)
def moments(step: int, times: int, period: int) -> tuple[int, int, int]:
    """Count, sum and sum of squares of step, step + period, ..., `times` of them."""
    pairs = times * (times - 1) // 2
    squares = (times - 1) * times * (2 * times - 1) // 6
    first = times * step + period * pairs
    return times, first, times * step * step + 2 * step * period * pairs + period * period * squares


@lru_cache(1 << 16)
def first_step(num_blocks: int, block_size: int) -> Grant:
    """The grant for one step that took num_blocks blocks."""
    return Grant(growth=Growth(num_blocks * block_size))
