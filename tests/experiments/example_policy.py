"""A complete memory policy outside the package: slabs, of which a sequence takes one more whenever it needs one."""

from testbed.core.slots import GRANTED, Extent, Refusal, Usage, ceil_div
from testbed.memory.policy import MemoryPolicy, PoolSpec


class Slabs(MemoryPolicy):
    """Slabs of slab_size slots; at most max_slabs of them for a sequence (0: no limit)."""

    def __init__(self, pool: PoolSpec, slab_size: int = 64, max_slabs: int = 0) -> None:
        self.slab_size = slab_size
        self.num_slabs = pool.num_slots // slab_size
        self.max_slabs = max_slabs or self.num_slabs
        self.free = list(range(self.num_slabs))
        self.slabs = {}  # by sequence id
        self.live = 0  # slots that store a token, or are about to

    def admit(self, seqs, num_tokens):
        if num_tokens > self.longest(seqs[0].prompt_len, len(seqs)):
            return Refusal.NEVER
        if not self.grow({seq.seq_id: num_tokens for seq in seqs}):
            return Refusal.LATER
        self.live += num_tokens * len(seqs)
        return [GRANTED] * len(seqs)

    def extend(self, batch, num_tokens):
        if not self.grow({seq.seq_id: seq.room + num_tokens for seq in batch}):
            return Refusal.LATER
        self.live += num_tokens * len(batch)
        return GRANTED

    def release(self, seq):
        self.free += self.slabs.pop(seq.seq_id)
        self.live -= seq.room

    def table(self, seq):
        return [Extent(slab * self.slab_size, self.slab_size) for slab in self.slabs[seq.seq_id]]

    def usage(self):
        total, free = self.num_slabs * self.slab_size, len(self.free) * self.slab_size
        return Usage(
            total, self.live, held=total - free, allocated=total - free, cached=0, free=free, largest_free=free
        )

    def longest(self, prompt_len, num_seqs):
        return self.slab_size * min(self.max_slabs, self.num_slabs // num_seqs)

    def grow(self, rooms):
        """Room for so many tokens of each of these sequences, all or none."""
        missing = {i: ceil_div(room, self.slab_size) - len(self.slabs.get(i, [])) for i, room in rooms.items()}
        if sum(missing.values()) > len(self.free):
            return False
        for seq_id, count in missing.items():
            self.slabs.setdefault(seq_id, []).extend(self.free.pop() for _ in range(count))
        return True
