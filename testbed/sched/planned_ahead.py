"""Asynchronous scheduling: an iteration is planned while the one before it still runs."""

from testbed.core.request import Incoming
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.sched.plan import Plan
from testbed.sched.scheduler import Scheduler


class PlannedAhead(Scheduler):
    """To be named before the scheduler that it delays: `class Mine(PlannedAhead, VllmV1)`.

    The plan of an iteration is made when the one before it begins. It knows how far that one will bring everybody, but
    neither who ends by it nor who arrives meanwhile. Here it is made when that one is over, and looks away: an ended
    group keeps its place and room, and takes one more step if it is still in the batch, until the plan is made; an
    arrival is seen by the plan after that. Nothing is planned ahead of a pause: where there is nothing to do, results
    come in and the plan is made again.

    Fast equals slow, though a plan that ends a span looks away from all that arrived since the one before: a span that
    arrivals do not end is one whose next plan lets nobody in, for room and places come back by results only.
    """

    def add(self, request: Incoming) -> SequenceGroup:
        group = super().add(request)
        self.residents.arriving.append(self.residents.waiting.pop())
        return group

    def end(self, group: SequenceGroup) -> None:
        """The group is answered, but its results are not in."""
        group.status = SequenceStatus.FINISHED
        self.residents.ended.append(group)

    def plan(self) -> Plan:
        plan = super().plan()  # type: ignore[safe-super]  # that of the scheduler behind this class
        if self.residents.settle():
            plan.horizon = 0
            if not plan and not plan.rejected:
                return super().plan()  # type: ignore[safe-super]
        return plan
