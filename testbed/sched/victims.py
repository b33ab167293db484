"""The choice of the running group that is preempted (section 4.5): the last that came, or the last
in rank.
"""

from testbed.core.sequence import Batch, SequenceGroup
from testbed.sched.orders import rank_of
from testbed.sched.plan import wrong_answer
from testbed.sched.state import SchedulerState


class VictimRule:
    """Chooses among the groups that `candidates` leaves: first come, first served."""

    def victim(self, running: dict[int, SequenceGroup], batch: Batch) -> SequenceGroup:
        """The running group to preempt, from their live counts: by default the last that came.

        Args:
            running: the groups by request id, in order of admission; at least one.
            batch: the sequences that decode.
        """
        return next(reversed(running.values()))


def candidates(state: SchedulerState) -> dict[int, SequenceGroup]:
    """The running groups among which a rule chooses, by request id: all, or the last in rank."""
    if state.ranking.keeps_arrival:
        return state.running
    last = max(state.running.values(), key=rank_of)
    return {last.request_id: last}


def chosen_victim(state: SchedulerState, rule: VictimRule) -> SequenceGroup:
    """The rule's victim.

    Raises:
        PlugInError: the rule's answer is no running group.
    """
    group = rule.victim(candidates(state), state.batch)
    if not isinstance(group, SequenceGroup) or state.running.get(group.request_id) is not group:
        raise wrong_answer(rule, group, "victim() gives a running group")
    return group
