"""The engine that has most of the prompt, weighed against its load."""

from collections.abc import Sequence

from testbed.core.request import Incoming
from testbed.core.units import NonNegative, Seconds
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class PrefixAware(Router):
    """The engine of the lowest cost in tokens: those of the prompt, less hit_weight times those
    that its prefix cache has, and load_weight times those of its unanswered requests. Of equal ones
    the first.

    With load_weight=0 a prompt goes to the engine with its longest prefix, however long the queue
    there; with hit_weight=0, to the engine with the fewest tokens. cache_age_s: the age, in
    seconds, of what the router knows of the caches.
    """

    def __init__(
        self,
        hit_weight: NonNegative = 1.0,
        load_weight: NonNegative = 1.0,
        cache_age_s: Seconds = 0.0,
    ) -> None:
        self.hit_weight = hit_weight
        self.load_weight = load_weight
        self.cache_age_s = cache_age_s

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        return min(engines, key=lambda view: self._cost(request, view))

    def _cost(self, request: Incoming, view: EngineView) -> float:
        cost = request.prompt_len - self.hit_weight * view.num_cached(request)
        return cost + self.load_weight * view.num_tokens if self.load_weight else cost
