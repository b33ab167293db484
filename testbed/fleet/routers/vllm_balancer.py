"""The balancer that vLLM has behind one address, for --data-parallel-size."""

from collections.abc import Sequence

from testbed.core.request import PS, Incoming
from testbed.core.units import Seconds
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView

WAITING_WEIGHT = 4  # vLLM's vllm/v1/engine/core_client.py, get_core_engine_for_request


class VllmBalancer(Router):
    """The engine with the lowest 4 x waiting + running requests, the first of equals.

    The counts are news every interval_s, at the next request after that (vLLM publishes them every
    0.1 s); until then a request that was routed counts as waiting. Of vLLM, one API server.
    """

    def __init__(self, interval_s: Seconds = 0.1) -> None:
        self._interval_ps = round(interval_s * PS)
        self._next_ps = 0
        self._scores: dict[int, int] = {}

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        is_complete = all(view.number in self._scores for view in engines)
        if request.arrival_ps >= self._next_ps or not is_complete:
            self._scores = {view.number: _score(view) for view in engines}
            self._next_ps = request.arrival_ps + self._interval_ps
        view = min(engines, key=lambda view: self._scores[view.number])
        self._scores[view.number] += WAITING_WEIGHT
        return view


def _score(view: EngineView) -> int:
    return WAITING_WEIGHT * view.num_waiting + view.num_running
