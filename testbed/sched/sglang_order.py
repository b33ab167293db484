"""The order in which SGLang's queue is asked (SchedulePolicy of release 0.5.23)."""

from abc import ABC, abstractmethod
from collections import deque

from testbed.core.errors import InputError
from testbed.core.sequence import SequenceGroup
from testbed.memory.capabilities import Capabilities
from testbed.memory.prefix_cache.hash_chain import block_contents
from testbed.memory.radix.tree import RadixTree

MOST_MATCHED = 128  # WAITING_QUEUE_PREFIX_MATCH_MAX
PASSES = 32  # WAITING_PREFIX_REFRESH_INTERVAL
IN_BATCH = 32  # tokens: IN_BATCH_PREFIX_CACHING_CHECK_ and _DEPRIORITIZE_THRESHOLD

Queue = deque[SequenceGroup]


class QueueOrder(ABC):
    """Puts the queue in order before each pass over it, for good."""

    @abstractmethod
    def sort(self, waiting: Queue) -> None:
        """Put the queue in order."""


class FirstCome(QueueOrder):
    """As it is. Every PASSES passes, what the first MOST_MATCHED would find counts as used, so that
    it is evicted in the reverse order of admission.
    """

    def __init__(self, memory: Capabilities) -> None:
        self.memory = memory
        self._num_passes = 0

    def sort(self, waiting: Queue) -> None:
        pins = self.memory.pins_hits
        if not waiting or pins is None:
            return
        if self._num_passes % PASSES == 0:
            for group in reversed(list(waiting)[:MOST_MATCHED]):
                pins.match(group.sequences[0], group.prefill_len)
        self._num_passes += 1


class ByPriority(FirstCome):
    """By the requests' priority, then by the time at which they joined the queue."""

    def __init__(self, memory: Capabilities, low_first: bool) -> None:
        super().__init__(memory)
        self.sign = 1 if low_first else -1

    def sort(self, waiting: Queue) -> None:
        ordered = sorted(
            waiting, key=lambda group: (self.sign * group.request.priority, group.rank)
        )
        waiting.clear()
        waiting.extend(ordered)
        super().sort(waiting)


class LongestPrefix(FirstCome):
    """The longest cached prefix first, matched anew in every pass.

    Of requests with little in the cache that begin alike, only the first is served in its place:
    the others find what it computes. More than MOST_MATCHED requests stay as they are.
    """

    def sort(self, waiting: Queue) -> None:
        if len(waiting) > MOST_MATCHED or self.memory.pins_hits is None:
            super().sort(waiting)
            return
        alike = RadixTree()
        ranks = {group: self._rank(group, alike) for group in waiting}
        ordered = sorted(waiting, key=ranks.__getitem__)
        waiting.clear()
        waiting.extend(ordered)

    def _rank(self, group: SequenceGroup, alike: RadixTree) -> float:
        pins, seq = self.memory.pins_hits, group.sequences[0]
        assert pins is not None, "asked where hits are pinned"
        cached = pins.match(seq, group.prefill_len).num_cached(group.prefill_len)
        if cached <= IN_BATCH and seq.prompt_ids is not None:
            contents = tuple(block_contents(seq.prompt_ids, seq.tokens_per_id, seq.prompt_len, 1))
            if alike.match(contents, len(contents))[1] >= IN_BATCH:
                return float("inf")
            alike.insert(contents, [0] * len(contents))
        return -min(cached, group.prefill_len - 1)


def order_of(schedule_policy: str, memory: Capabilities) -> QueueOrder:
    """The order of this name."""
    if schedule_policy == "fcfs":
        return FirstCome(memory)
    if schedule_policy == "lpm":
        return LongestPrefix(memory)
    raise InputError(
        "is not modelled (choose fcfs or lpm)",
        key="scheduler.schedule_policy",
        value=str(schedule_policy),
    )
