"""The longest prefix among the engines whose load is about the lowest."""

from collections.abc import Sequence

from testbed.core.request import Incoming
from testbed.core.units import Count, Seconds
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class BalancedPrefix(Router):
    """Of the engines whose unanswered requests have at most max_lead tokens more than those of the
    least loaded one, the engine that has most of the prompt in its prefix cache; of equal ones the
    one that has waited longest for a request, so that they take turns.

    A prefix that all requests share can therefore not draw them all to one engine, and engines that
    have the same of a prompt are served one after another, however their loads differ below
    max_lead. cache_age_s: how old, in seconds, what the router knows of the caches is.
    """

    def __init__(self, max_lead: Count = 50_000, cache_age_s: Seconds = 0.0) -> None:
        self.max_lead = max_lead
        self.cache_age_s = cache_age_s
        self._num_routed = 0
        self._last_turn: dict[int, int] = {}

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        loads = [view.num_tokens for view in engines]
        most = min(loads) + self.max_lead
        near = [view for view, load in zip(engines, loads, strict=True) if load <= most]
        chosen = min(near, key=lambda view: (-view.num_cached(request), self._turn_of(view)))
        self._num_routed += 1
        self._last_turn[chosen.number] = self._num_routed
        return chosen

    def _turn_of(self, view: EngineView) -> tuple[int, int]:
        """The time of the engine's last request, of engines without one in order of number."""
        return self._last_turn.get(view.number, 0), view.number
