"""A window that drops tokens (StreamingLLM): the first tokens and the last ones stay, by whole
blocks.
"""

from testbed.core.slots import GRANTED, Extent, Refusal, Usage, ceil_div
from testbed.memory.policy import MemoryPolicy, PoolSpec


class Window(MemoryPolicy):
    """Keeps at least the first `sinks` tokens of a sequence and its last `window`, in blocks of
    block_size slots.

    A sequence that has all the blocks that it may have writes the next token over the oldest block
    behind the sinks. It does not predict: what it stores grows and falls, so every iteration is
    looked at.
    """

    def __init__(
        self, pool: PoolSpec, sinks: int = 4, window: int = 256, block_size: int = 16
    ) -> None:
        self.block_size = block_size
        self.num_blocks = pool.num_slots // block_size
        self.num_sinks = ceil_div(sinks, block_size)
        self.max_blocks = self.num_sinks + ceil_div(window, block_size) + 1
        self.max_len = pool.max_len
        self.free = list(range(self.num_blocks))
        self.blocks = {}  # of each resident sequence, in the order of the tokens that are left
        self.resident = {}
        self.live = 0

    def num_stored(self, prompt_len, num_tokens):
        """Tokens that are left of a sequence of so many: fewer, so this policy drops tokens."""
        return num_tokens - self.dropped(num_tokens) * self.block_size

    def dropped(self, num_tokens):
        """Blocks of a sequence of so many tokens that were written over."""
        return max(0, ceil_div(num_tokens, self.block_size) - self.max_blocks)

    def needed(self, num_tokens):
        """Blocks that a sequence of so many tokens holds."""
        return min(ceil_div(num_tokens, self.block_size), self.max_blocks)

    def admit(self, seqs, num_tokens):
        needed = self.needed(num_tokens)
        if needed * len(seqs) > self.num_blocks:
            return Refusal.NEVER
        if needed * len(seqs) > len(self.free):
            return Refusal.LATER
        self.live += self.num_stored(seqs[0].prompt_len, num_tokens) * len(seqs)
        for seq in seqs:
            self.blocks[seq.seq_id] = [self.free.pop() for _ in range(needed)]
            self.resident[seq.seq_id] = seq
        return [GRANTED] * len(seqs)

    def extend(self, batch, num_tokens):
        missing = {
            seq: self.needed(seq.num_slots + num_tokens) - len(self.blocks[seq.seq_id])
            for seq in batch
        }
        if sum(missing.values()) > len(self.free):
            return Refusal.LATER
        for seq, count in missing.items():
            stored = self.num_stored(seq.prompt_len, seq.num_slots)
            self.live += self.num_stored(seq.prompt_len, seq.num_slots + num_tokens) - stored
            blocks = self.blocks[seq.seq_id]
            blocks += [self.free.pop() for _ in range(count)]
            for _ in range(self.dropped(seq.num_slots + num_tokens) - self.dropped(seq.num_slots)):
                blocks.append(blocks.pop(self.num_sinks))
        return GRANTED

    def release(self, seq):
        self.free += self.blocks.pop(seq.seq_id)
        del self.resident[seq.seq_id]
        self.live -= self.num_stored(seq.prompt_len, seq.num_slots)

    def table(self, seq):
        return [
            Extent(block * self.block_size, self.block_size) for block in self.blocks[seq.seq_id]
        ]

    def usage(self):
        total, free = self.num_blocks * self.block_size, len(self.free) * self.block_size
        return Usage(
            total,
            self.live,
            held=total - free,
            allocated=total - free,
            cached=0,
            free=free,
            largest_free=free,
        )

    def max_seq_len(self, prompt_len, num_seqs):
        blocks = self.num_blocks // num_seqs
        return self.max_len if blocks >= self.max_blocks else blocks * self.block_size

    def check(self):
        super().check()
        stored = [self.num_stored(seq.prompt_len, seq.num_slots) for seq in self.resident.values()]
        assert self.live == sum(stored), "live slots are miscounted"
        for seq_id, seq in self.resident.items():
            assert len(self.blocks[seq_id]) == self.needed(seq.num_slots), f"blocks of {seq}"
        assert sorted(sum(self.blocks.values(), self.free)) == list(range(self.num_blocks)), (
            "blocks were lost"
        )
