"""Requests that are measured in phases, one after the other, each as long as it takes.

No time is predicted: what comes next comes when something has ended, however fast the machine is.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from testbed.core.request import Request
from testbed.engine.listeners import Listener
from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.records import Iteration


class Phase(NamedTuple):
    """Requests that are measured together.

    residents: come at once. visitors: come one by one while the residents decode, each when the one
    before has been answered and as long again has passed, so that iterations with a visitor take
    about half of the time, as on a busy server.

    A phase without visitors ends when all residents have. One with visitors ends with the last of
    them, or with the first resident; those that are left are cancelled.
    """

    residents: Sequence[Request]
    visitors: Sequence[Request] = ()

    @property
    def requests(self) -> list[Request]:
        """All of them."""
        return [*self.residents, *self.visitors]

    def within(self, max_len: int) -> "Phase":
        """This phase with outputs that end at the longest sequence of a model, in tokens."""
        return Phase(_within(max_len, self.residents), _within(max_len, self.visitors))


def _within(max_len: int, requests: Sequence[Request]) -> list[Request]:
    return [
        request._replace(output_len=min(request.output_len, max_len - request.prompt_len))
        for request in requests
    ]


def in_phases(engine: GpuEngine, phases: Sequence[Phase]) -> list[list[Iteration]]:
    """The iterations of each phase, served by an engine that has served nothing."""
    loop = PhaseByPhase(engine, phases)
    with engine.serving([request for phase in phases for request in phase.requests]):
        loop.start()
        engine.run()
    return loop.iterations


class PhaseByPhase(Listener):
    """Sends the requests of phases to an engine, which reports when each has ended."""

    def __init__(self, engine: GpuEngine, phases: Sequence[Phase]) -> None:
        self._records = engine.records
        self._engine = engine.engine
        self._clock = engine.clock
        self._phases = iter(phases)
        self._starts = list[int]()  # the first iteration of each phase, and of what would follow
        self._present = set[int]()  # the requests that have come and not ended
        self._staying = frozenset[int]()  # residents that must not leave before the visitors
        self._visitors: Iterator[Request] = iter(())
        self._visitor = -1
        self._came_ps = 0

    @property
    def iterations(self) -> list[list[Iteration]]:
        """The iterations of each phase that is over."""
        served = self._records.iterations
        return [served[first:end] for first, end in pairwise(self._starts)]

    def start(self) -> None:
        """Send the first phase's residents."""
        self._engine.listen(self)
        self._next_phase()

    def on_finished(self, request_id: int, time_ps: int) -> None:
        self._ended(request_id, time_ps)

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        self._ended(request_id, time_ps)

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        raise ValueError(f"a request that is to be measured could never run: {reason}")

    def _ended(self, request_id: int, time_ps: int) -> None:
        self._present.discard(request_id)
        if not self._present:
            self._clock.call_at(time_ps, self._next_phase)
        elif request_id in self._staying:
            self._clock.call_at(time_ps, self._leave)
        elif request_id == self._visitor:
            as_long_again_ps = time_ps + (time_ps - self._came_ps)
            self._clock.call_at(as_long_again_ps, partial(self._visit, self._visitors))

    def _next_phase(self) -> None:
        self._starts.append(len(self._records.iterations))
        phase = next(self._phases, None)
        if phase is None:
            self._engine.close()
            return
        for request in phase.residents:
            self._send(request)
        self._visitors = iter(phase.visitors)
        self._staying = frozenset(self._present if phase.visitors else ())
        if phase.visitors:
            self._visit(self._visitors)

    def _visit(self, visitors: Iterator[Request]) -> None:
        """The next visitor comes, unless the phase has ended; behind the last one it ends."""
        if visitors is not self._visitors:
            return
        visitor = next(visitors, None)
        if visitor is None:
            self._leave()
            return
        self._visitor, self._came_ps = visitor.request_id, self._clock.now_ps
        self._send(visitor)

    def _leave(self) -> None:
        """No sequence stays, and none joins."""
        self._staying, self._visitors = frozenset(), iter(())
        for request_id in sorted(self._present):
            self._engine.cancel(request_id)

    def _send(self, request: Request) -> None:
        self._present.add(request.request_id)
        self._engine.submit(request._replace(arrival_ps=self._clock.now_ps))
