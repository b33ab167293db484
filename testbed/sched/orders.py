"""The order in which a scheduler admits waiting requests and preempts running ones: first
come, by priority, by priority with ageing, or by session.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar

from testbed.core.request import PS, Incoming
from testbed.core.sequence import SequenceGroup
from testbed.core.units import PositiveSeconds, Seconds


class Order(ABC):
    """Ranks requests: the smallest rank is admitted first, and the running group of the largest is
    preempted first.

    A group of smaller rank is therefore never preempted for one of larger rank, and while it waits
    or is swapped out no group of larger rank is admitted. Groups that are swapped out return in
    order of rank too.

    Attributes:
        keeps_arrival: requests are admitted as they arrive, and nothing is sorted.
        retains_s: seconds for which an answered request of a session keeps its slots; 0: not at
            all.
    """

    keeps_arrival: ClassVar[bool] = False
    retains_s: float = 0.0

    @abstractmethod
    def rank(self, request: Incoming) -> tuple[int, ...]:
        """The rank of a request that arrives now, which it keeps; equal ones are served in order of
        arrival.

        Args:
            request: without its output length.
        """

    def columns_read(self) -> tuple[str, ...]:
        """See ReadsColumns."""
        return ()

    def choose_order(self, waiting: deque[SequenceGroup]) -> None:
        """Put the queue into the order of service; see Scheduler.

        Args:
            waiting: the groups that wait.
        """
        put_in_order(waiting)


class FirstCome(Order):
    """Requests are served as they arrive; the rule of preemption alone chooses its victim."""

    keeps_arrival: ClassVar[bool] = True

    def rank(self, request: Incoming) -> tuple[int, ...]:
        return ()


class ByPriority(Order):
    """vLLM's `--scheduling-policy priority`: the smaller number is the more urgent, and of equal
    ones the earlier. A class may wait for ever while more urgent requests come.
    """

    def columns_read(self) -> tuple[str, ...]:
        return ("priority",)

    def rank(self, request: Incoming) -> tuple[int, ...]:
        return request.priority, request.arrival_ps


class Aging(Order):
    """A request of priority p is served as if it had arrived p * patience_s seconds later than it
    did, so that none waits for ever.
    """

    def __init__(self, patience_s: Seconds = 10.0) -> None:
        self.patience_ps = round(patience_s * PS)

    def columns_read(self) -> tuple[str, ...]:
        return ("priority",)

    def rank(self, request: Incoming) -> tuple[int, ...]:
        return (request.arrival_ps + request.priority * self.patience_ps,)


class SessionOrder(Order):
    """A request is served as if it had arrived with the first request of its session (Continuum's
    program-level order).

    A session that has begun is thus ended before a later one, which waits for ever if the earlier
    one never ends. A request without a session is one of its own.
    """

    def __init__(self) -> None:
        self._start_ps: dict[int, int] = {}

    def columns_read(self) -> tuple[str, ...]:
        return ("session",)

    def rank(self, request: Incoming) -> tuple[int, ...]:
        if request.session is None:
            return (request.arrival_ps,)
        return (self._start_ps.setdefault(request.session, request.arrival_ps),)


class TimeToLive(SessionOrder):
    """Sessions in their order, whose answered requests keep their slots for time_to_live_s
    (Continuum); see Retention.
    """

    def __init__(self, time_to_live_s: PositiveSeconds = 10.0) -> None:
        super().__init__()
        self.retains_s = time_to_live_s


FIRST_COME = FirstCome()


def rank_of(group: SequenceGroup) -> tuple[int, ...]:
    return group.rank


def put_in_order(groups: deque[SequenceGroup]) -> None:
    """Sort a queue by rank, in place."""
    ordered = sorted(groups, key=rank_of)
    groups.clear()
    groups.extend(ordered)
