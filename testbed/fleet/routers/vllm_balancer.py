"""The balancer that vLLM has behind one address, for --data-parallel-size."""

from collections.abc import Sequence
from typing import NamedTuple

from testbed.core.request import PS, Incoming
from testbed.core.units import Seconds
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView

# Of vLLM's vllm/v1/engine/core_client.py, get_core_engine_for_request
WAITING_WEIGHT = 4
USAGE_WEIGHT, USUAL_USAGE = 6.0, 0.5  # of a request that waits, by the usage above the usual


class Counts(NamedTuple):
    """The news of an engine: requests, and the share of its pool that they hold."""

    waiting: int
    running: int
    usage: float


class VllmBalancer(Router):
    """The engine with the lowest 4 x waiting + running requests, the first of equals.

    The counts are news every interval_s, at the next request after that (vLLM publishes them every
    0.1 s); until then a request that was routed counts as waiting. Of vLLM, one API server.

    weighs_usage: as releases do since 0.28: the lowest of all unanswered requests, or of these
    counts if they are more, and up to three times the waiting ones by the usage of the pool; equal
    engines take turns.
    """

    def __init__(self, interval_s: Seconds = 0.1, weighs_usage: bool = False) -> None:
        self.weighs_usage = weighs_usage
        self._interval_ps = round(interval_s * PS)
        self._next_ps = 0
        self._counts: dict[int, Counts] = {}
        self._turn = 0

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        is_complete = all(view.number in self._counts for view in engines)
        if request.arrival_ps >= self._next_ps or not is_complete:
            self._counts = {view.number: self._news_of(view) for view in engines}
            self._next_ps = request.arrival_ps + self._interval_ps
        first = self._turn % len(engines)
        view = min((*engines[first:], *engines[:first]), key=self._score)
        counts = self._counts[view.number]
        self._counts[view.number] = counts._replace(waiting=counts.waiting + 1)
        self._turn = (first + 1) * self.weighs_usage
        return view

    def _news_of(self, view: EngineView) -> Counts:
        usage = view.kv_usage if self.weighs_usage else 0.0
        return Counts(view.num_waiting, view.num_running, usage)

    def _score(self, view: EngineView) -> float:
        waiting, running, usage = self._counts[view.number]
        if not self.weighs_usage:
            return WAITING_WEIGHT * waiting + running
        more = waiting * USAGE_WEIGHT * max(0.0, usage - USUAL_USAGE)
        return max(view.num_requests, waiting + running) + more
