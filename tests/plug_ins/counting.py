"""Paged memory that counts, for the summary: copies on write, and how old blocks are when they are
given back.
"""

from collections import Counter

from testbed.core.slots import Grant, Keep
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec

AGES = (0, 16, 64, 256, 1024)


class CountingPaged(Paged):
    """A block's age is how many tokens its sequence has had slots for since it took the block: 0
    for the prompt's last.

    `blocks_of_age_16` counts the blocks that were given back at an age from 16 to 63, by every
    sequence that held them.
    """

    def __init__(self, pool: PoolSpec, block_size: int = 16, watermark: float = 0.01) -> None:
        super().__init__(pool, block_size, watermark)
        self.counts = Counter({"copies_on_write": 0} | {f"blocks_of_age_{age}": 0 for age in AGES})

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        if isinstance(answer, Grant):
            self.counts["copies_on_write"] += len(answer.ops.copies)
        return answer

    def release(self, seq, keep=Keep.CACHED):
        super().release(seq, keep)
        for taken_at in range(0, seq.num_slots, self.block_size):
            age = seq.num_slots - max(taken_at + 1, min(seq.prompt_len, seq.num_slots))
            self.counts[
                f"blocks_of_age_{max(at_least for at_least in AGES if at_least <= age)}"
            ] += 1

    def counters(self):
        return dict(self.counts)
