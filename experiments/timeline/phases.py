"""What every request was doing, and when: read off the plans as they are carried out."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.sched.plan import Plan
from testbed.sim.recorder import Recorder
from testbed.sim.totals import Seen

QUEUED, PREFILL, DECODE, PREEMPTED, SWAPPED = "queued", "prefill", "decode", "preempted", "swapped"


class Phase(NamedTuple):
    """A stretch of a request's life, in picoseconds; one that the run's end has cut ends there."""

    name: str
    start_ps: int
    end_ps: int


class Life(NamedTuple):
    """A request and its phases, in order, without a gap from its arrival to its end."""

    request: Request
    phases: list[Phase]
    rejected: str = ""


class PhaseRecorder(Recorder):
    """A recorder that also keeps, for every request that has come in, when its phases began.

    queued: waiting for its first room. prefill: from the iteration of its first chunk. decode: from its first token, or
    from where it came back. preempted: its memory was given up, to be computed again. swapped: on the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self._came: dict[int, Request] = {}
        self._begun: dict[int, list[tuple[str, int]]] = {}
        self._ended: dict[int, int] = {}

    def noted(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests, remembered as they come in."""
        for request in requests:
            self._came[request.request_id] = request
            yield request

    def first_token(self, request_id: int, now_ps: int) -> None:
        """Its prompt is done, for the first time or again."""
        super().first_token(request_id, now_ps)
        self._begin(request_id, DECODE, now_ps)

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """It is done."""
        super().served(request, group, now_ps)
        self._ended[request.request_id] = now_ps

    def rejected(self, request: Request, reason: str) -> None:
        """It was turned away, as soon as it was looked at."""
        super().rejected(request, reason)
        self._ended[request.request_id] = request.arrival_ps

    def span(
        self, start_ps: int, duration_ps: int, steps: int, plan: Plan, queues: tuple[int, int], seen: Seen
    ) -> None:
        """Whoever is preempted, comes back or computes its prompt in this plan does so from its start on."""
        super().span(start_ps, duration_ps, steps, plan, queues, seen)
        for group in plan.preempted:
            swapped = group.status is SequenceStatus.SWAPPED
            self._begin(group.request.request_id, SWAPPED if swapped else PREEMPTED, start_ps)
        for group in plan.resumed:
            self._begin(group.request.request_id, DECODE, start_ps)
        for chunk in plan.chunks:
            self._begin(chunk.group.request.request_id, PREFILL, start_ps)

    def lives(self) -> list[Life]:
        """Every request that came in before the end of the run, in order of arrival."""
        return [self._life(request) for request in self._came.values() if request.arrival_ps <= self.end_ps]

    def _begin(self, request_id: int, name: str, now_ps: int) -> None:
        begun = self._begun.setdefault(request_id, [])
        if not begun or begun[-1][0] != name:
            begun.append((name, now_ps))

    def _life(self, request: Request) -> Life:
        end_ps = self._ended.get(request.request_id, self.end_ps)
        begun = [(QUEUED, request.arrival_ps), *self._begun.get(request.request_id, [])]
        ends = [*(start for _, start in begun[1:]), end_ps]
        phases = [Phase(name, start, end) for (name, start), end in zip(begun, ends, strict=True) if end > start]
        return Life(request, phases, self.rejections.get(request.request_id, ""))
