"""Schedulers that serve by rank instead of by arrival: priority classes that age, and sessions by
their start.
"""

from abc import abstractmethod
from collections import deque
from typing import ClassVar

from testbed.core.request import PS, Incoming
from testbed.core.sequence import SequenceGroup
from testbed.core.units import Count, PositiveCount, PositiveTokens, Seconds
from testbed.memory.policy import MemoryPolicy
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.state import SchedulerState


class RankedState(SchedulerState):
    """Swapped groups are in order of rank too, and the running group that ranks last is the one to
    preempt.

    A group of smaller rank is therefore never preempted for one of larger rank, and while it waits
    or is swapped out no group of larger rank is admitted: as long as ranks grow with time, nobody
    is starved.
    """

    def returns_first(self) -> bool:
        return not self.waiting or self.swapped[0].rank < self.waiting[0].rank

    def preemptible(self) -> dict[int, SequenceGroup]:
        last = max(super().preemptible().values(), key=rank_of)
        return {last.request.request_id: last}

    def swap_out(self, group: SequenceGroup, plan: Plan) -> bool:
        moved = super().swap_out(group, plan)
        put_in_order(self.swapped)
        return moved


class Ranked(ChunkedPrefill):
    """Chunked prefill in order of rank, which a request has from its arrival on."""

    state_class: ClassVar[type[SchedulerState]] = RankedState

    @abstractmethod
    def rank(self, request: Incoming) -> int:
        """The rank of a request that arrives now: the smallest is served first, equal ones in order
        of arrival.
        """

    def add(self, request: Incoming) -> SequenceGroup:
        group = super().add(request)
        group.rank = self.rank(request), request.request_id
        return group

    def choose_order(self, waiting: deque[SequenceGroup]) -> None:
        put_in_order(waiting)


class PriorityClasses(Ranked):
    """A request of priority p is served as if it had arrived p * patience_s seconds later than it
    did.

    The smaller number is the more urgent, as in vLLM, which has no ageing: a large patience_s comes
    close to it. The running request to preempt is the one that is served last by this order.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_num_batched_tokens: PositiveTokens,
        max_num_seqs: PositiveCount,
        prefetch: Count = 0,
        patience_s: Seconds = 10.0,
    ) -> None:
        super().__init__(
            policy,
            preemption,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            prefetch=prefetch,
        )
        self.patience_ps = round(patience_s * PS)

    def columns_read(self) -> tuple[str, ...]:
        """See ReadsColumns."""
        return ("priority",)

    def rank(self, request: Incoming) -> int:
        return request.arrival_ps + request.priority * self.patience_ps


class SessionOrder(Ranked):
    """A request is served as if it had arrived with the first request of its session (Continuum's
    program-level order).

    A session that has begun is thus ended before a later one, which waits for ever if the earlier
    one never ends. A request without a session is one of its own.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_num_batched_tokens: PositiveTokens,
        max_num_seqs: PositiveCount,
        prefetch: Count = 0,
    ) -> None:
        super().__init__(
            policy,
            preemption,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            prefetch=prefetch,
        )
        self._start_ps: dict[int, int] = {}

    def columns_read(self) -> tuple[str, ...]:
        """See ReadsColumns."""
        return ("session",)

    def rank(self, request: Incoming) -> int:
        if request.session is None:
            return request.arrival_ps
        return self._start_ps.setdefault(request.session, request.arrival_ps)


def rank_of(group: SequenceGroup) -> tuple[int, int]:
    return group.rank


def put_in_order(groups: deque[SequenceGroup]) -> None:
    """Sort a queue by rank, in place."""
    ordered = sorted(groups, key=rank_of)
    groups.clear()
    groups.extend(ordered)
