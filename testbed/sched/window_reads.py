"""What the members of a batch read in layers with a sliding window, found without iterating over the batch."""

import heapq
from functools import partial

from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.cost.model import UNBOUNDED, WindowReads
from testbed.sched.plan import Plan


class WindowIndex(BatchIndex):
    """The members shorter than a window of `size` tokens, as offsets; all others read `size` tokens each.

    A member becomes as long as the window once, and never shorter while it is in the batch.
    """

    def __init__(self, batch: Batch, size: int) -> None:
        self.batch = batch
        self.size = size
        self._shorter: dict[int, int] = {}
        self._longest: list[tuple[int, int]] = []
        self._offsets = 0

    def added(self, seq: Sequence) -> None:
        if seq.num_slots < self.size:
            self._shorter[seq.seq_id] = seq.slots_offset
            self._offsets += seq.slots_offset
            heapq.heappush(self._longest, (-seq.slots_offset, seq.seq_id))

    def removed(self, seq: Sequence) -> None:
        self._offsets -= self._shorter.pop(seq.seq_id, 0)

    def reads(self) -> WindowReads:
        """What the next iteration reads, every member its own newest token too."""
        batch, shorter = self.batch, self._shorter
        longest = self._drop_full()
        count = len(shorter)
        tokens = self._offsets + batch.extended * count + self.size * (len(batch) - count)
        return WindowReads(self.size, tokens, count, UNBOUNDED if longest is None else self.size - longest + 1)

    def _drop_full(self) -> int | None:
        """The length of the longest member that is shorter than the window, after those that no longer are."""
        heap, shorter, extended = self._longest, self._shorter, self.batch.extended
        while heap:
            offset, seq_id = -heap[0][0], heap[0][1]
            if shorter.get(seq_id) == offset:
                if offset + extended < self.size:
                    return offset + extended
                self._offsets -= shorter.pop(seq_id)
            heapq.heappop(heap)
        return None


def windows_of(plan: Plan, batch: Batch, sizes: tuple[int, ...]) -> tuple[WindowReads, ...]:
    """What the decodes of a plan read, for each size: of the batch where it steps, and of those just swapped in."""
    back = [
        group.sequences[0].num_slots
        for group in plan.swapped_in
        if group.sequences[0].num_slots > group.sequences[0].num_stored
        for _ in group.sequences
    ]
    steps = plan.decode_seqs > len(back)
    return tuple(_with(back, _index(batch, size).reads() if steps else WindowReads(size, 0, 0, 1)) for size in sizes)


def _index(batch: Batch, size: int) -> WindowIndex:
    return batch.index(("window", size), partial(WindowIndex, size=size))


def _with(lengths: list[int], reads: WindowReads) -> WindowReads:
    """The same and sequences of these lengths, in an iteration that is not repeated."""
    more = sum(min(length, reads.size) for length in lengths)
    return reads._replace(tokens=reads.tokens + more) if lengths else reads
