"""Keeps an answered request's slots allocated for a time to live, for the next request of its
session.
"""

from testbed.core.errors import InputError
from testbed.core.request import PS, Incoming
from testbed.core.sequence import SequenceGroup
from testbed.cost.model import UNBOUNDED
from testbed.memory.capabilities import Capabilities
from testbed.sched.orders import rank_of


class Retention:
    """The time that answered groups of sessions, `SchedulerState.leased`, keep their slots.

    They are released for the request whose prompt continues theirs; the last in rank also for a
    running group that lacks slots, and for a waiting one if nothing runs. When its time is up a
    group is cached like all else; one whose session has ended is not retained. Continuum estimates
    a time for each tool; here all have one.
    """

    def __init__(self, memory: Capabilities, time_s: float) -> None:
        if memory.leases is None:
            raise InputError(
                key="order",
                value="time_to_live",
                problem=f"{memory.name} cannot keep the slots of an answered request",
                remedy="choose policy=prefix_caching, or another policy that has end_lease()",
            )
        self.time_ps = max(round(time_s * PS), 1)

    def expired(self, leased: dict[SequenceGroup, int], now_ps: int) -> list[SequenceGroup]:
        """The groups whose time is up; the time of those whose answer is new begins."""
        for group, until_ps in leased.items():
            leased[group] = until_ps or now_ps + self.time_ps
        return [group for group, until_ps in leased.items() if until_ps <= now_ps]


def next_expiry(leased: dict[SequenceGroup, int]) -> int:
    """The time at which the next group's lease ends."""
    return min(leased.values(), default=UNBOUNDED)


def last_in_rank(leased: dict[SequenceGroup, int]) -> list[SequenceGroup]:
    """The retained group that ranks last; empty if there is none."""
    return [max(leased, key=rank_of)] if leased else []


def continued_by(leased: dict[SequenceGroup, int], request: Incoming) -> list[SequenceGroup]:
    """The retained groups whose prompt a request continues."""
    return [old for old in leased if continues(request, old.request)]


def of_session(leased: dict[SequenceGroup, int], session: int) -> list[SequenceGroup]:
    """The retained groups of a session."""
    return [group for group in leased if group.request.session == session]


def continues(request: Incoming, before: Incoming) -> bool:
    """True if a prompt begins with that of an earlier request of its session, but for the last id
    of that one.
    """
    ids, old = request.prompt_ids, before.prompt_ids
    if request.session != before.session or ids is None or old is None:
        return False
    return len(ids) >= len(old) and ids[: len(old) - 1] == old[:-1]
