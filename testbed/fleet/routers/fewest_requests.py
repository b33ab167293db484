"""The engine with the fewest requests."""

from collections.abc import Sequence

from testbed.core.request import Incoming
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class FewestRequests(Router):
    """The engine with the fewest requests that are not answered; of equal ones the first."""

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        return min(engines, key=lambda view: view.num_requests)
