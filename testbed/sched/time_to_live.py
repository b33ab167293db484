"""Keeps an answered request's slots allocated for a time to live, for the next request of its
session.
"""

from typing import ClassVar

from testbed.core.errors import InputError
from testbed.core.request import PS, Incoming
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Answers, CacheHit, Refusal
from testbed.core.units import Count, PositiveCount, PositiveSeconds, PositiveTokens
from testbed.cost.model import UNBOUNDED
from testbed.memory.policy import MemoryPolicy
from testbed.sched.lessees import Sessions
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.ranked import RankedState, SessionOrder, rank_of
from testbed.sched.state import SchedulerState


class RetainingState(RankedState):
    """`leased` has the answered groups of sessions. They are released for the request whose prompt
    continues theirs; the last in rank also to a running group that lacks slots, and to a waiting
    one where nothing runs.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        super().__init__(policy)
        if self.memory.leases is None:
            raise InputError(
                f"scheduler=time_to_live: {self.memory.name} cannot keep the slots of an answered "
                "request (choose policy=prefix_caching, or another policy that has end_lease())"
            )
        self.lessee = Sessions()

    def admit(self, group: SequenceGroup, num_tokens: int, plan: Plan, hit: CacheHit) -> Answers:
        answers = super().admit(group, num_tokens, plan, hit)
        if not isinstance(answers, Refusal):
            self.end_leases([old for old in self.leased if continues(group.request, old.request)])
        return answers

    def free_for_waiting(self) -> bool:
        """What is retained is given back for a waiting group only where nothing runs."""
        return super().free_for_waiting() or (not self.running and self._release_last_retained())

    def free_for_running(self, num_tokens: int) -> bool:
        return super().free_for_running(num_tokens) or self._release_last_retained()

    def _release_last_retained(self) -> bool:
        """End the lease of the retained group that ranks last; whether there is one."""
        if not self.leased:
            return False
        self.end_leases([max(self.leased, key=rank_of)])
        return True

    def expire(self, now_ps: int, time_ps: int) -> int:
        """Release what has been retained for time_ps; when the next group will have been."""
        for group, until_ps in self.leased.items():
            self.leased[group] = until_ps or now_ps + time_ps
        self.end_leases([group for group, until_ps in self.leased.items() if until_ps <= now_ps])
        return min(self.leased.values(), default=UNBOUNDED)


def continues(request: Incoming, before: Incoming) -> bool:
    """Whether a prompt begins with that of an earlier request of its session, but for the last id
    of that one.
    """
    ids, old = request.prompt_ids, before.prompt_ids
    if request.session != before.session or ids is None or old is None:
        return False
    return len(ids) >= len(old) and ids[: len(old) - 1] == old[:-1]


class TimeToLive(SessionOrder):
    """Sessions in their order, whose answered requests keep their slots for time_to_live_s
    (Continuum).

    Nobody evicts what is retained; when its time is up it is cached like all else. A session that
    has ended retains nothing. Continuum estimates a time for each tool; here all have one.
    """

    state_class: ClassVar[type[SchedulerState]] = RetainingState

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_num_batched_tokens: PositiveTokens,
        max_num_seqs: PositiveCount,
        prefetch: Count = 0,
        time_to_live_s: PositiveSeconds = 10.0,
    ) -> None:
        super().__init__(
            policy,
            preemption,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            prefetch=prefetch,
        )
        self.time_to_live_ps = max(round(time_to_live_s * PS), 1)
        assert isinstance(self.state, RetainingState)
        self._retaining = self.state

    def plan(self) -> Plan:
        wake_ps = self._retaining.expire(self.now_ps, self.time_to_live_ps)
        plan = super().plan()
        plan.wake_ps = wake_ps
        return plan

    def close_session(self, session: int) -> None:
        state = self._retaining
        state.end_leases([group for group in state.leased if group.request.session == session])
        super().close_session(session)
