"""A policy that drops tokens: a sequence keeps its newest ones, in a ring of slots that it gets at admission."""

from testbed.core.slots import GRANTED, Extent, Fixed, Refusal, Usage
from testbed.memory.policy import MemoryPolicy


class Window(MemoryPolicy):
    """Rings of `window` slots."""

    drops_tokens = True

    def __init__(self, pool, window=24):
        self.window = window
        self.num_rings = pool.num_slots // window
        self.max_len = pool.max_len
        self.free = list(range(self.num_rings))
        self.rings = {}

    def admit(self, seqs, num_tokens):
        if len(seqs) > self.num_rings:
            return Refusal.NEVER
        if len(seqs) > len(self.free):
            return Refusal.LATER
        self.rings.update((seq.seq_id, (seq, self.free.pop())) for seq in seqs)
        return [GRANTED] * len(seqs)

    def extend(self, batch, num_tokens):
        return GRANTED

    def release(self, seq):
        self.free.append(self.rings.pop(seq.seq_id)[1])

    def table(self, seq):
        start = self.rings[seq.seq_id][1] * self.window
        oldest = seq.num_slots % self.window if seq.num_slots > self.window else 0
        return [Extent(start + oldest, self.window - oldest), Extent(start, oldest)]

    def usage(self):
        total, free = self.num_rings * self.window, len(self.free) * self.window
        live = sum(self.num_stored(seq.num_slots) for seq, _ in self.rings.values())
        return Usage(total, live, total - free, total - free, 0, free, self.window if free else 0)

    def num_stored(self, num_tokens):
        return min(num_tokens, self.window)

    def guaranteed_steps(self, batch):
        return self.max_len

    def footprint(self, seq):
        return Fixed(self.window)
