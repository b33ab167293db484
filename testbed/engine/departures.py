"""The ways in which requests leave an engine: answered, rejected, cancelled, or handed back
unanswered.
"""

from collections.abc import Iterable

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.engine.executor import Executor, Flight
from testbed.engine.handover_hooks import HandoverHooks
from testbed.engine.meter import Meter
from testbed.engine.notifications import Listeners
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.sched.plan import Plan
from testbed.sched.scheduler import Scheduler


class Departures:
    """Each request leaves the scheduler, the executor, the outputs and the meter; then it is
    recorded, and the listeners are called.

    hooks: the engine's part in hand-overs, if it has one, which may take an answered group over.
    listeners: nothing listens at first.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        outputs: Outputs,
        meter: Meter,
        recorder: Recorder,
    ) -> None:
        self.hooks: HandoverHooks | None = None
        self.listeners = Listeners(scheduler.state, outputs.requests)
        self._scheduler = scheduler
        self._executor = executor
        self._outputs = outputs
        self._meter = meter
        self._recorder = recorder

    def finish(self, group: SequenceGroup, now_ps: int) -> None:
        """The scheduler has finished the group: its request is answered, by this engine or by one
        that takes it over.
        """
        request = self._outputs.removed(group.request_id)
        if self.hooks is not None and self.hooks.takes(group):
            self._recorder.moved_on(request, now_ps)
            return
        self._recorder.served(request, group, now_ps)
        if self.listeners.has_listener:
            self.listeners.finished(request.request_id, now_ps)

    def reject(self, request: Request, reason: str, now_ps: int) -> None:
        """The request could never run, and is not served."""
        sent = request if self.hooks is None else self.hooks.sent(request)
        self._recorder.rejected(sent, reason)
        self.listeners.rejected(request.request_id, reason, now_ps)

    def reject_planned(self, plan: Plan, now_ps: int) -> None:
        """The plan lists groups that could never run, or that cannot go on."""
        for group in plan.rejected:
            self._executor.removed(group)
            self._meter.forget(group)
            request = self._outputs.removed(group.request_id)
            self.reject(request, plan.reasons[request.request_id], now_ps)

    def cancel(self, request_id: int, in_flight: Iterable[Flight], now_ps: int) -> None:
        """The request leaves, if it has not ended by now. in_flight: the plans in flight."""
        group = self._scheduler.state.find(request_id)
        if group is None or request_id not in self._outputs.requests:
            return
        request, finished = self._withdraw(group, in_flight)
        self._recorder.cancelled(request, group, now_ps)
        self.listeners.cancelled(request_id, now_ps)
        self._finish_others(finished, now_ps)

    def hand_back_all(self, in_flight: Iterable[Flight], now_ps: int) -> list[Request]:
        """All requests leave unanswered, because the engine fails; they are returned in order of
        arrival. in_flight: the plans in flight.
        """
        handed_back: list[Request] = []
        for request_id in sorted(self._outputs.requests):
            group = self._scheduler.state.find(request_id)
            if group is None or request_id not in self._outputs.requests:
                continue
            request, finished = self._withdraw(group, in_flight)
            self._recorder.moved_on(request, now_ps)
            handed_back.append(request)
            self._finish_others(finished, now_ps)
        return handed_back

    def _withdraw(
        self, group: SequenceGroup, in_flight: Iterable[Flight]
    ) -> tuple[Request, list[SequenceGroup]]:
        """The group leaves; its request, and the groups that are finished because it has left."""
        for flight in in_flight:
            flight.plan.leave_out(group)
        finished = self._scheduler.cancel(group)
        self._executor.removed(group)
        self._meter.forget(group)
        return self._outputs.removed(group.request_id), finished

    def _finish_others(self, finished: list[SequenceGroup], now_ps: int) -> None:
        for group in finished:
            self._meter.forget(group)
            self.finish(group, now_ps)
