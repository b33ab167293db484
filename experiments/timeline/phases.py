"""The phases of every request over time, recorded from the executed plans."""

from typing import NamedTuple

from testbed.core.request import Incoming, Request, Workload
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.sched.plan import Plan
from testbed.sim.recorder import Recorder
from testbed.sim.totals import Seen

QUEUED, PREFILL, DECODE, PREEMPTED, SWAPPED = "queued", "prefill", "decode", "preempted", "swapped"


class Phase(NamedTuple):
    """An interval of a request's life, in picoseconds; the last ends with the run at the latest."""

    name: str
    start_ps: int
    end_ps: int


class Life(NamedTuple):
    """A request and its phases, in order, without a gap from its arrival to its end."""

    request: Request | Incoming
    phases: list[Phase]
    rejected: str = ""


class PhaseRecorder(Recorder):
    """A recorder that also stores when the phases of every arrived request began.

    queued: waiting for its first slots. prefill: from the iteration of its first chunk. decode: from its first token,
    or from its swap-in. preempted: released, to be recomputed. swapped: on the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self._came: dict[int, Request | Incoming] = {}
        self._begun: dict[int, list[tuple[str, int]]] = {}
        self._ended: dict[int, int] = {}

    def first_token(self, request_id: int, now_ps: int) -> None:
        """Its prefill has finished, for the first time or after recompute."""
        super().first_token(request_id, now_ps)
        self._begin(request_id, DECODE, now_ps)

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request has finished."""
        super().served(request, group, now_ps)
        self._came[request.request_id] = request
        self._ended[request.request_id] = now_ps

    def rejected(self, request: Request, reason: str) -> None:
        """The request was rejected when the scheduler first considered it."""
        super().rejected(request, reason)
        self._came[request.request_id] = request
        self._ended[request.request_id] = request.arrival_ps

    def span(
        self, start_ps: int, duration_ps: int, steps: int, plan: Plan, waiting: int, swapped: int, seen: Seen
    ) -> None:
        """Requests that this plan preempts, swaps in or prefills change their phase at its start."""
        super().span(start_ps, duration_ps, steps, plan, waiting, swapped, seen)
        for group in plan.preempted:
            to_host = group.status is SequenceStatus.SWAPPED
            self._begin(group.request.request_id, SWAPPED if to_host else PREEMPTED, start_ps)
        for group in plan.swapped_in:
            self._begin(group.request.request_id, DECODE, start_ps)
        for chunk in plan.chunks:
            self._came.setdefault(chunk.group.request.request_id, chunk.group.request)
            self._begin(chunk.group.request.request_id, PREFILL, start_ps)

    def lives(self, workload: Workload) -> list[Life]:
        """Every request of the workload that arrived before the end of the run, in order of arrival.

        In a workload without known arrival times, requests that the scheduler has not considered are missing.
        """
        timed = workload if workload.arrival_ps.any() else ()
        queued: dict[int, Request | Incoming] = {r.request_id: r for r in timed if r.arrival_ps <= self.end_ps}
        return [self._life(r) for r in sorted((queued | self._came).values(), key=lambda r: r.arrival_ps)]

    def _begin(self, request_id: int, name: str, now_ps: int) -> None:
        begun = self._begun.setdefault(request_id, [])
        if not begun or begun[-1][0] != name:
            begun.append((name, now_ps))

    def _life(self, request: Request | Incoming) -> Life:
        end_ps = self._ended.get(request.request_id, self.end_ps)
        begun = [(QUEUED, request.arrival_ps), *self._begun.get(request.request_id, [])]
        ends = [*(start for _, start in begun[1:]), end_ps]
        phases = [Phase(name, start, end) for (name, start), end in zip(begun, ends, strict=True) if end > start]
        return Life(request, phases, self.rejections.get(request.request_id, ""))
