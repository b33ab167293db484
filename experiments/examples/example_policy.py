"""A complete memory policy outside the package: slabs, of which a sequence takes one more whenever
it needs one.
"""

from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import GRANTED, Answer, Answers, Extent, Refusal, Usage, ceil_div
from testbed.memory.policy import MemoryPolicy, PoolSpec


class Slabs(MemoryPolicy):
    """Slabs of slab_size slots; at most max_slabs of them for a sequence (0: no limit)."""

    def __init__(self, pool: PoolSpec, slab_size: int = 64, max_slabs: int = 0) -> None:
        self.slab_size = slab_size
        self.num_slabs = pool.num_slots // slab_size
        self.max_slabs = max_slabs or self.num_slabs
        self.free = list(range(self.num_slabs))
        self.slabs: dict[int, list[int]] = {}  # by sequence id
        self.live = 0  # slots that store a token, or are about to

    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        if num_tokens > self.max_seq_len(seqs[0].prompt_len, len(seqs)):
            return Refusal.NEVER
        if not self.grow({seq.seq_id: num_tokens for seq in seqs}):
            return Refusal.LATER
        self.live += num_tokens * len(seqs)
        return [GRANTED] * len(seqs)

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        if not self.grow({seq.seq_id: seq.num_slots + num_tokens for seq in batch}):
            return Refusal.LATER
        self.live += num_tokens * len(batch)
        return GRANTED

    def release(self, seq: Sequence) -> None:
        self.free += self.slabs.pop(seq.seq_id)
        self.live -= seq.num_slots

    def table(self, seq: Sequence) -> list[Extent]:
        return [Extent(slab * self.slab_size, self.slab_size) for slab in self.slabs[seq.seq_id]]

    def usage(self) -> Usage:
        total, free = self.num_slabs * self.slab_size, len(self.free) * self.slab_size
        return Usage(
            total,
            self.live,
            held=total - free,
            allocated=total - free,
            cached=0,
            free=free,
            largest_free=free,
        )

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        return self.slab_size * min(self.max_slabs, self.num_slabs // num_seqs)

    def grow(self, slot_counts: dict[int, int]) -> bool:
        """Slots for the tokens of each of these sequences, all or none."""
        missing = {
            i: ceil_div(num_slots, self.slab_size) - len(self.slabs.get(i, []))
            for i, num_slots in slot_counts.items()
        }
        if sum(missing.values()) > len(self.free):
            return False
        for seq_id, count in missing.items():
            self.slabs.setdefault(seq_id, []).extend(self.free.pop() for _ in range(count))
        return True
