"""The better of two engines that are drawn (Mitzenmacher, 2001)."""

from collections.abc import Sequence
from random import Random

from testbed.core.request import Incoming
from testbed.core.units import Count
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class PowerOfTwo(Router):
    """Draws two engines at random, and takes the one with fewer unanswered requests; of equal
    ones the first that was drawn. seed: of the draws.
    """

    def __init__(self, seed: Count = 0) -> None:
        self._random = Random(f"{seed} router")

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        drawn = self._random.sample(range(len(engines)), min(2, len(engines)))
        return min([engines[place] for place in drawn], key=lambda view: view.num_requests)
