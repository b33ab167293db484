"""The phases that each request of a run goes through, as its plans are executed."""

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.core.request import Incoming, Request
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.cost.model import UNBOUNDED
from testbed.engine.executor import Flight
from testbed.engine.recorder import Recorder
from testbed.engine.totals import SpanAccount, SpanMemory
from testbed.sched.plan import Plan

QUEUED, PREFILL, DECODE, PREEMPTED, SWAPPED = "queued", "prefill", "decode", "preempted", "swapped"
HANDOVER = "handover"


@dataclass
class Life:
    """A request with the phases that it went through.

    begun: name and begin (ps) of each phase; a phase lasts until the next one or the end.
    end_ps: when the request ended, at the latest when the run did.
    """

    request: Request | Incoming
    begun: list[tuple[str, int]]
    end_ps: int

    def begin(self, name: str, now_ps: int) -> None:
        """Begin a phase, unless the request is in it already."""
        current, _ = self.begun[-1]
        if current != name:
            self.begun.append((name, now_ps))

    @property
    def start_ps(self) -> int:
        """The start of its first phase."""
        return self.begun[0][1]

    def overlaps(self, start_ps: int, stop_ps: int) -> bool:
        """True if a part of it lies in [start_ps, stop_ps)."""
        return self.start_ps < min(stop_ps, self.end_ps) and self.end_ps > start_ps


class PhaseRecorder(Recorder):
    """A recorder that also stores when each phase of every arrived request began.

    - queued: waits for its first slots
    - prefill: from the iteration of its first chunk
    - handover: on its way from an engine that has its first token
    - decode: from its first token, or from its swap-in
    - preempted: its slots were released, and it will be recomputed
    - swapped: its slots are on the host
    """

    def __init__(self) -> None:
        super().__init__()
        self._lives: dict[int, Life] = {}

    def first_tokens(self, groups: list[SequenceGroup], now_ps: int) -> None:
        """Their prefill has finished, for the first time or after recompute."""
        super().first_tokens(groups, now_ps)
        for group in groups:
            self._lives[group.request_id].begin(DECODE, now_ps)

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request has finished."""
        super().served(request, group, now_ps)
        life = self._life(request)
        life.request, life.end_ps = request, now_ps

    def rejected(self, request: Request, reason: str) -> None:
        """The request was rejected when the scheduler first considered it."""
        super().rejected(request, reason)
        self._life(request).end_ps = request.arrival_ps

    def cancelled(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request was cancelled."""
        super().cancelled(request, group, now_ps)
        self._life(request).end_ps = now_ps

    def span(
        self,
        start_ps: int,
        duration_ps: int,
        steps: int,
        plan: Plan,
        waiting: int,
        swapped: int,
        memory: SpanMemory,
        growth_ps: int = 0,
    ) -> None:
        """Change the phase of the requests that this plan preempts, swaps in or prefills."""
        super().span(start_ps, duration_ps, steps, plan, waiting, swapped, memory, growth_ps)
        for group in plan.preempted:
            to_host = group.status is SequenceStatus.SWAPPED
            self._life(group.request).begin(SWAPPED if to_host else PREEMPTED, start_ps)
        for group in plan.swapped_in:
            self._life(group.request).begin(DECODE, start_ps)
        self._computes_prompts(plan, start_ps)

    def fused_span(
        self,
        flight: Flight,
        memory: SpanAccount,
        ended: tuple[int, ...],
        done: Iterable[SequenceGroup],
    ) -> None:
        """`span` for iterations of the fused path."""
        super().fused_span(flight, memory, ended, done)
        self._computes_prompts(flight.plan, flight.start_ps)
        for group in done:
            self._lives[group.request_id].begin(DECODE, flight.end_ps)

    def _computes_prompts(self, plan: Plan, start_ps: int) -> None:
        for chunk in plan.chunks:
            self._life(chunk.group.request).begin(PREFILL, start_ps)

    def moved_on(self, request: Request, now_ps: int) -> None:
        """The request leaves for another engine."""
        super().moved_on(request, now_ps)
        self._life(request).end_ps = now_ps

    def taken_over(self, request: Request, first_ps: int, now_ps: int) -> None:
        """The request comes from another engine: it is seen here from its first token on."""
        super().taken_over(request, first_ps, now_ps)
        life = Life(request, [(HANDOVER, first_ps), (DECODE, now_ps)], UNBOUNDED)
        self._lives[request.request_id] = life

    def lives(self, requests: Iterable[Request]) -> list[Life]:
        """Every request that arrived before the end of the run, in order of arrival. Of those that
        are not among `requests`, which say when they arrived, the ones that the scheduler has not
        yet considered are missing.
        """
        for request in requests:
            if request.arrival_ps <= self.end_ps:
                self._life(request)
        for life in self._lives.values():
            life.end_ps = min(life.end_ps, self.end_ps)
        return sorted(self._lives.values(), key=lambda life: life.start_ps)

    def _life(self, request: Request | Incoming) -> Life:
        """The life of a request, which begins in the queue."""
        return self._lives.setdefault(
            request.request_id, Life(request, [(QUEUED, request.arrival_ps)], UNBOUNDED)
        )
