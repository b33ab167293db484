"""Virtual memory (vAttention): each sequence has max_len contiguous addresses, and pages are mapped
behind them.

A table lists the physical pages, because slots are memory: pages are interchangeable, so nothing is
ever scattered, and that addresses are contiguous is the kernel's matter
(`cost.choices.kernel=contiguous`). Its cost is mapping.
"""

from collections import Counter

from testbed.core.slots import Extent, Grant, Granular, Ops, Refusal, Usage, ceil_div, growth_of
from testbed.memory.policy import MemoryPolicy, PoolSpec


class VAttention(MemoryPolicy):
    """Pages of page_size slots, mapped on demand; charge them by `extra_s: {pages_mapped: ...}` of
    the cost model.

    With keep_mapped, pages of a sequence that has left stay behind its addresses, for the next one
    to come; they are taken from there when no other page is free.
    """

    def __init__(self, pool: PoolSpec, page_size: int = 64, keep_mapped: bool = True) -> None:
        self.page_size = page_size
        self.max_len = pool.max_len
        self.num_pages = pool.num_slots // page_size
        self.keep_mapped = keep_mapped
        self.unmapped = list(range(self.num_pages))
        self.left = []  # pages that stay mapped behind the addresses of sequences that have left
        self.pages = {}  # of each resident sequence, in order of address
        self.resident = {}
        self.live = self.num_mapped = 0

    def admit(self, seqs, num_tokens):
        if num_tokens > self.max_seq_len(seqs[0].prompt_len, len(seqs)):
            return Refusal.NEVER
        needed = ceil_div(num_tokens, self.page_size)
        if len(seqs) * needed > self.num_free():
            return Refusal.LATER
        self.live += num_tokens * len(seqs)
        grants = []
        for seq in seqs:
            pages = self.left.pop() if self.left else []
            self.unmapped += pages[needed:]
            self.pages[seq.seq_id] = pages[:needed]
            self.resident[seq.seq_id] = seq
        for seq in seqs:
            grants.append(Grant(ops=mapped(self.map(seq, needed))))
        return grants

    def extend(self, batch, num_tokens):
        needed = {seq: ceil_div(seq.num_slots + num_tokens, self.page_size) for seq in batch}
        if any(seq.num_slots + num_tokens > self.max_len for seq in batch):
            return Refusal.NEVER
        if (
            sum(count - len(self.pages[seq.seq_id]) for seq, count in needed.items())
            > self.num_free()
        ):
            return Refusal.LATER
        self.live += num_tokens * len(batch)
        growth = Counter()
        for seq in batch:
            for step in range(self.left_of_page(seq), num_tokens, self.page_size):
                growth[step] += self.page_size
        ops = mapped(sum(self.map(seq, count) for seq, count in needed.items()))
        return Grant(ops=ops, growth=growth_of(growth.items()))

    def guaranteed_steps(self, batch):
        """Steps until a sequence needs a page: mapping takes time, so it ends a span."""
        return min(
            (min(self.left_of_page(seq), self.max_len - seq.num_slots) for seq in batch), default=0
        )

    def release(self, seq):
        pages = self.pages.pop(seq.seq_id)
        del self.resident[seq.seq_id]
        self.live -= seq.num_slots
        if self.keep_mapped:
            self.left.append(pages)
        else:
            self.unmapped += pages

    def table(self, seq):
        return [Extent(page * self.page_size, self.page_size) for page in self.pages[seq.seq_id]]

    def usage(self):
        total, free = self.num_pages * self.page_size, self.num_free() * self.page_size
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
        return Granular(self.page_size)

    def max_seq_len(self, prompt_len, num_seqs):
        return min(self.num_pages // num_seqs * self.page_size, self.max_len)

    def counters(self):
        return {"pages_mapped": self.num_mapped}

    def check(self):
        super().check()
        pages = [
            page for pages in (self.unmapped, *self.left, *self.pages.values()) for page in pages
        ]
        assert sorted(pages) == list(range(self.num_pages)), "pages were lost, or are mapped twice"
        assert self.live == sum(seq.num_slots for seq in self.resident.values()), (
            "live slots are miscounted"
        )
        for seq_id, seq in self.resident.items():
            assert len(self.pages[seq_id]) == ceil_div(seq.num_slots, self.page_size), (
                f"{seq} has too many pages, or few"
            )

    def num_free(self):
        return len(self.unmapped) + sum(map(len, self.left))

    def left_of_page(self, seq):
        """Slots of its last page that `seq` has no slots in yet."""
        return len(self.pages[seq.seq_id]) * self.page_size - seq.num_slots

    def map(self, seq, num_pages):
        """See to it that so many pages are mapped behind the addresses of `seq`; returns how many
        were not.
        """
        pages = self.pages[seq.seq_id]
        missing = num_pages - len(pages)
        while len(self.unmapped) < missing:
            self.unmapped += self.left.pop(0)
        pages += [self.unmapped.pop() for _ in range(missing)]
        self.num_mapped += missing
        return missing


def mapped(count):
    return Ops(extra=(("pages_mapped", count),)) if count else Ops()
