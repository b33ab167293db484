"""The engine with the fewest tokens."""

from collections.abc import Sequence

from testbed.core.request import Incoming
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class FewestTokens(Router):
    """The engine whose unanswered requests have the fewest tokens, prompts and outputs so far
    together; of equal ones the first.
    """

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        return min(engines, key=lambda view: view.num_tokens)
