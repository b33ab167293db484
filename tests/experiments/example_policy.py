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
        self.slabs: dict[int, list[int]] = {}
        self.tokens: dict[int, int] = {}

    def admit(self, seq, num_tokens):
        if ceil_div(num_tokens, self.slab_size) > min(self.max_slabs, self.num_slabs):
            return Refusal.NEVER
        return self._grow({seq.seq_id: num_tokens})

    def extend(self, seqs, num_tokens):
        return self._grow({seq.seq_id: self.tokens[seq.seq_id] + num_tokens for seq in seqs})

    def release(self, seq):
        self.free += self.slabs.pop(seq.seq_id)
        del self.tokens[seq.seq_id]

    def table(self, seq):
        return [Extent(slab * self.slab_size, self.slab_size) for slab in self.slabs[seq.seq_id]]

    def usage(self):
        total, free = self.num_slabs * self.slab_size, len(self.free) * self.slab_size
        held, live = total - free, sum(self.tokens.values())
        return Usage(total, live, held, held, 0, free, self.slab_size if free else 0)

    def fits(self, prompt_len, output_len, num_seqs):
        needed = ceil_div(prompt_len + output_len, self.slab_size)
        return needed <= self.max_slabs and num_seqs * needed <= self.num_slabs

    def _grow(self, lengths):
        """Room for so many tokens of each of these sequences, all or none."""
        needed = {i: ceil_div(n, self.slab_size) - len(self.slabs.get(i, [])) for i, n in lengths.items()}
        if sum(needed.values()) > len(self.free):
            return Refusal.LATER
        for seq_id, count in needed.items():
            self.slabs.setdefault(seq_id, []).extend(self.free.pop() for _ in range(count))
        self.tokens.update(lengths)
        return GRANTED
