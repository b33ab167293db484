"""Two block sizes: the whole large blocks of a prompt come from one pool, everything behind them
from another.
"""

from functools import cache

from testbed.core.slots import Extent, Grant, Refusal, Stepped, Usage, ceil_div, growth_of
from testbed.memory.policy import MemoryPolicy, PoolSpec


class TwoSizes(MemoryPolicy):
    """Blocks of `large` slots take up the first large_share of the pool, blocks of `small` slots
    the rest.

    A prompt's whole multiples of `large` tokens, its head, lie in large blocks; its end and the
    output in small ones.
    """

    def __init__(
        self, pool: PoolSpec, large: int = 128, small: int = 8, large_share: float = 0.5
    ) -> None:
        self.large, self.small = large, small
        self.max_len = pool.max_len
        self.num_large = int(pool.num_slots * large_share) // large
        self.num_small = (pool.num_slots - self.num_large * large) // small
        self.free = [list(range(self.num_large)), list(range(self.num_small))]
        self.blocks = {}  # by sequence id: its large blocks, its small blocks
        self.resident = {}
        self.live = 0
        self.footprint_of = cache(self.stepped)

    def admit(self, seqs, num_tokens):
        if num_tokens > self.max_seq_len(seqs[0].prompt_len, len(seqs)):
            return Refusal.NEVER
        for seq in seqs:
            self.blocks[seq.seq_id] = [], []
        if not self.grow({seq: num_tokens for seq in seqs}):
            for seq in seqs:
                del self.blocks[seq.seq_id]
            return Refusal.LATER
        self.resident.update((seq.seq_id, seq) for seq in seqs)
        self.live += num_tokens * len(seqs)
        return [Grant()] * len(seqs)

    def extend(self, batch, num_tokens):
        growth = []
        for step in range(num_tokens):
            taken = sum(
                self.size(seq, seq.num_slots + step + 1) - self.size(seq, seq.num_slots + step)
                for seq in batch
            )
            growth += [(step, taken)] if taken else []
        if not self.grow({seq: seq.num_slots + num_tokens for seq in batch}):
            return Refusal.LATER
        self.live += num_tokens * len(batch)
        return Grant(growth=growth_of(growth))

    def guaranteed_steps(self, batch):
        """Whole rounds of a small block for each member; none while a head is not complete."""
        if any(seq.num_slots < self.head(seq.prompt_len) for seq in batch):
            return 0
        return self.small * (len(self.free[1]) // len(batch)) if len(batch) else 0

    def release(self, seq):
        for free, blocks in zip(self.free, self.blocks.pop(seq.seq_id), strict=True):
            free += blocks
        del self.resident[seq.seq_id]
        self.live -= seq.num_slots

    def table(self, seq):
        large, small = self.blocks[seq.seq_id]
        behind = self.num_large * self.large
        head = [Extent(block * self.large, self.large) for block in large]
        return head + [Extent(behind + block * self.small, self.small) for block in small]

    def usage(self):
        large, small = (len(free) for free in self.free)
        total = self.num_large * self.large + self.num_small * self.small
        free = large * self.large + small * self.small
        return Usage(
            total,
            self.live,
            held=total - free,
            allocated=total - free,
            cached=0,
            free=free,
            largest_free=free,
        )

    def footprint(self, seq):
        return self.footprint_of(self.head(seq.prompt_len))

    def stepped(self, head):
        """The slots of a sequence with this head, as (tokens, slots)."""
        large, small = (
            range(self.large, head + 1, self.large),
            range(head + self.small, self.max_len + self.small),
        )
        return Stepped(tuple((end, end) for end in (*large, *small[:: self.small])))

    def max_seq_len(self, prompt_len, num_seqs):
        head = self.head(prompt_len)
        fits = num_seqs * head <= self.num_large * self.large
        return min(head + self.num_small // num_seqs * self.small, self.max_len) if fits else 0

    def head(self, prompt_len):
        """Leading tokens of such a sequence that lie in large blocks."""
        return prompt_len // self.large * self.large

    def needed(self, seq, num_slots):
        """Large and small blocks for so many slots."""
        head = self.head(seq.prompt_len)
        return ceil_div(min(num_slots, head), self.large), ceil_div(
            max(num_slots - head, 0), self.small
        )

    def size(self, seq, num_slots):
        """Slots for so many slots."""
        large, small = self.needed(seq, num_slots)
        return large * self.large + small * self.small

    def check(self):
        super().check()
        assert self.live == sum(seq.num_slots for seq in self.resident.values()), (
            "live slots are miscounted"
        )
        for seq_id, seq in self.resident.items():
            assert tuple(map(len, self.blocks[seq_id])) == self.needed(seq, seq.num_slots), (
                f"blocks of {seq}"
            )
        for i, total in enumerate((self.num_large, self.num_small)):
            blocks = sum((held[i] for held in self.blocks.values()), self.free[i])
            assert sorted(blocks) == list(range(total)), "blocks were lost, or are held twice"

    def grow(self, slot_counts):
        """Blocks for so many slots of each of these sequences, all or none."""
        missing = {}
        for seq, num_slots in slot_counts.items():
            held = self.blocks[seq.seq_id]
            missing[seq] = [
                count - len(blocks)
                for count, blocks in zip(self.needed(seq, num_slots), held, strict=True)
            ]
        if any(
            sum(counts[i] for counts in missing.values()) > len(free)
            for i, free in enumerate(self.free)
        ):
            return False
        for seq, counts in missing.items():
            for held, free, count in zip(self.blocks[seq.seq_id], self.free, counts, strict=True):
                held.extend(free.pop() for _ in range(count))
        return True
