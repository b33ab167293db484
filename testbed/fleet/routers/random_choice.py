"""Any engine."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from testbed.core.request import Incoming
from testbed.core.units import Count
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class RandomChoice(Router):
    """An engine that is drawn at random, all with the same chance. seed: of the draws."""

    looks_at_engines: ClassVar[bool] = False

    def __init__(self, seed: Count = 0) -> None:
        self._random = Random(f"{seed} router")

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        return engines[self._random.randrange(len(engines))]
