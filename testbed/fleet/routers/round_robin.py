"""One engine after another."""

from collections.abc import Sequence
from typing import ClassVar

from testbed.core.request import Incoming
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class RoundRobin(Router):
    """The engine behind the last one in order of number, whatever its load."""

    looks_at_engines: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last = -1

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        last = self._last
        for view in engines:
            if view.number > last:
                break
        else:
            view = engines[0]
        self._last = view.number
        return view
