"""The order in which SGLang's queue is asked (SchedulePolicy of release 0.5.23)."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, NamedTuple

from testbed.core.errors import InputError
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import CacheHit, ceil_div
from testbed.memory.capabilities import Capabilities
from testbed.memory.prefix_cache.hash_chain import block_contents
from testbed.memory.radix.tree import RadixTree
from testbed.sched.sglang_requests import DeclaredOutputs

MOST_MATCHED = 128  # WAITING_QUEUE_PREFIX_MATCH_MAX
PASSES = 32  # WAITING_PREFIX_REFRESH_INTERVAL
IN_BATCH = 32  # tokens: IN_BATCH_PREFIX_CACHING_CHECK_ and _DEPRIORITIZE_THRESHOLD
SEED = 0  # of the random order

Queue = deque[SequenceGroup]
Key = Callable[[SequenceGroup], Any]


class FirstCome:
    """The queue as it is. Every PASSES passes, what the first MOST_MATCHED would find counts as
    used, so that it is evicted in the reverse order of admission.
    """

    counts_steps: ClassVar[bool] = False  # a request that joins notes how many steps were taken

    def __init__(self, memory: Capabilities) -> None:
        self.memory = memory
        self._num_passes = 0

    def sort(self, waiting: Queue) -> None:
        """Put the queue in order before a pass over it, for good."""
        pins = self.memory.pins_hits
        if not waiting or pins is None:
            return
        if self._num_passes % PASSES == 0:
            for group in reversed(list(waiting)[:MOST_MATCHED]):
                pins.refresh(group.sequences[0], group.prefill_len)
        self._num_passes += 1

    def joined(self, group: SequenceGroup) -> None:
        """The group has joined the queue."""

    def computed(self, num_tokens: int) -> None:
        """So many tokens of prompts are computed, as SGLang counts them."""

    def chunk_limit(self, left: int, budget: int) -> int | None:
        """The most tokens of the next chunk of a prompt that has `left` tokens left; None: the
        budget.
        """
        return None


class ByKey(FirstCome):
    """Sorts by a key of each request that needs no cache; equal requests keep their order."""

    def __init__(self, memory: Capabilities, key: Key) -> None:
        super().__init__(memory)
        self._key = key

    def sort(self, waiting: Queue) -> None:
        put_in_order(waiting, sorted(waiting, key=self._key))
        super().sort(waiting)


class Shuffled(FirstCome):
    """A new random order before each pass."""

    def __init__(self, memory: Capabilities) -> None:
        super().__init__(memory)
        self._random = Random(SEED)

    def sort(self, waiting: Queue) -> None:
        ordered = list(waiting)
        self._random.shuffle(ordered)
        put_in_order(waiting, ordered)
        super().sort(waiting)


class Matched(NamedTuple):
    """The cached part of a waiting request, below the device too: `cached` tokens of its `left`,
    but the last one.

    comes_last: another with little in the cache that begins alike is served before it, and computes
    what it then finds.
    """

    group: SequenceGroup
    hit: CacheHit
    cached: int
    comes_last: bool


class CacheAware(FirstCome):
    """Sorts by the tokens of each request in the cache, matched anew in every pass.

    Of requests with little in the cache that begin alike, only the first is served in its place.
    """

    most = float("inf")  # requests; a longer queue stays as it is

    def sort(self, waiting: Queue) -> None:
        if self.memory.pins_hits is None or len(waiting) > self.most:
            super().sort(waiting)
            return
        alike = RadixTree()
        matched = [self._match(group, alike) for group in waiting]
        put_in_order(waiting, [match.group for match in self.ordered(matched)])

    @abstractmethod
    def ordered(self, matched: list[Matched]) -> list[Matched]:
        """The requests in order."""

    def _match(self, group: SequenceGroup, alike: RadixTree) -> Matched:
        pins, seq = self.memory.pins_hits, group.sequences[0]
        assert pins is not None, "asked if hits are pinned"
        hit = pins.match(seq, group.prefill_len)
        cached = hit.num_cached(group.prefill_len)
        matched = cached + sum(hit.num_below(group.prefill_len).values())
        comes_last = False
        if cached <= IN_BATCH and seq.prompt_ids is not None:
            contents = tuple(block_contents(seq.prompt_ids, seq.tokens_per_id, seq.prompt_len, 1))
            comes_last = alike.match(contents, len(contents))[1] >= IN_BATCH
            if not comes_last:
                alike.insert(contents, [0] * len(contents))
        return Matched(group, hit, min(matched, group.prefill_len - 1), comes_last)


class LongestPrefix(CacheAware):
    """The longest cached prefix first (lpm)."""

    most = MOST_MATCHED

    def ordered(self, matched: list[Matched]) -> list[Matched]:
        return sorted(matched, key=lambda m: float("inf") if m.comes_last else -m.cached)


class DepthFirst(CacheAware):
    """Walks the tree, first to the child with most of the queue (dfs-weight)."""

    def ordered(self, matched: list[Matched]) -> list[Matched]:
        pins = self.memory.pins_hits
        assert pins is not None, "asked if hits are pinned"
        return [matched[place] for place in pins.depth_first([match.hit for match in matched])]


class ShortestPrefill(CacheAware):
    """The fewest tokens to compute first, then those that have waited longest. The next chunk of a
    prompt leaves room for those before it with less to compute (shortest-prefill-first).
    """

    def __init__(self, memory: Capabilities, page_size: int) -> None:
        super().__init__(memory)
        self._page_size = page_size
        self._works: list[int] = []

    def ordered(self, matched: list[Matched]) -> list[Matched]:
        ordered = sorted(matched, key=lambda m: (m.comes_last, work_of(m), m.group.rank))
        self._works = [work_of(match) for match in ordered]
        return ordered

    def chunk_limit(self, left: int, budget: int) -> int | None:
        size, reserved = self._page_size, 0
        if budget < 2 * size:
            return None
        for work in self._works:
            charge = ceil_div(work, size) * size
            if work >= left or reserved + charge > budget - size:
                break
            reserved += charge
        return (budget - reserved) // size * size if reserved else None


class HighestResponseRatio(CacheAware):
    """The longest wait by what is to compute first, both in tokens of prompts (hrrn)."""

    most = MOST_MATCHED
    counts_steps = True

    def __init__(self, memory: Capabilities) -> None:
        super().__init__(memory)
        self._computed = 0
        self._joined: dict[int, int] = {}  # tokens that were computed when a request joined

    def joined(self, group: SequenceGroup) -> None:
        self._joined[group.request_id] = self._computed

    def computed(self, num_tokens: int) -> None:
        self._computed += num_tokens

    def ordered(self, matched: list[Matched]) -> list[Matched]:
        return sorted(matched, key=self._rank)

    def _rank(self, match: Matched) -> tuple[float, str]:
        """SGLang compares the names of equals as text."""
        request_id = match.group.request_id
        uncached = match.group.request.prompt_len - match.cached
        if match.comes_last:
            return float("inf"), str(request_id)
        if uncached <= 0:
            return -float("inf"), str(request_id)
        waited = self._computed - self._joined[request_id]
        return -(waited / uncached), str(request_id)


def work_of(match: Matched) -> int:
    """The tokens that a request has to compute."""
    return max(1, match.group.prefill_len - match.cached)


def put_in_order(waiting: Queue, ordered: list[SequenceGroup]) -> None:
    """Let the queue have this order."""
    waiting.clear()
    waiting.extend(ordered)


def order_of(
    schedule_policy: str,
    memory: Capabilities,
    outputs: DeclaredOutputs,
    page_size: int,
    priority_sign: int = 0,
) -> FirstCome:
    """The order of this name. priority_sign: 1 if a small number is urgent, -1 if a large one
    is, 0 without priorities. Raises InputError for an order that is not modelled.
    """
    orders: dict[str, Callable[[], FirstCome]] = {
        "fcfs": lambda: FirstCome(memory),
        "lof": lambda: ByKey(memory, longest_output),
        "random": lambda: Shuffled(memory),
        "lpm": lambda: LongestPrefix(memory),
        "dfs-weight": lambda: DepthFirst(memory),
        "hrrn": lambda: HighestResponseRatio(memory),
        "shortest-prefill-first": lambda: ShortestPrefill(memory, page_size),
    }

    def longest_output(group: SequenceGroup) -> tuple[int, int]:
        return priority_sign * group.request.priority, -outputs.declared(group)

    if priority_sign and schedule_policy == "fcfs":
        return ByKey(memory, lambda group: (priority_sign * group.request.priority, group.rank))
    problem = _problem(schedule_policy, memory, orders, by_priority=bool(priority_sign))
    if problem:
        raise InputError(key="scheduler.schedule_policy", value=schedule_policy, problem=problem)
    return orders[schedule_policy]()


def _problem(name: str, memory: Capabilities, orders: Any, *, by_priority: bool) -> str:
    """The reason why there is no such order; empty if there is."""
    if name == "routing-key":
        return "requests have no routing keys here, without which it is fcfs (fcfs)"
    if name not in orders:
        return f"is unknown (choose from {', '.join(orders)})"
    if by_priority and name not in ("fcfs", "lof"):
        return "does not go with enable_priority_scheduling (fcfs or lof)"
    if name == "shortest-prefill-first" and memory.pins_hits is None:
        return "needs a prefix cache (policy=radix)"
    return ""
