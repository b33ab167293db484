"""All requests of a session go to one engine."""

from collections.abc import Sequence
from typing import ClassVar

from testbed.core.request import Incoming
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class SessionAffinity(Router):
    """A session's first request goes to the engine with the fewest unanswered requests, the others
    follow it while that engine is up. A request without a session goes to that with the fewest.
    """

    needs_sessions: ClassVar[bool] = True

    def __init__(self) -> None:
        self._engine_of: dict[int, int] = {}

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        session = request.session
        if session is not None:
            for view in engines:
                if view.number == self._engine_of.get(session):
                    return view
        chosen = min(engines, key=lambda view: view.num_requests)
        if session is not None:
            self._engine_of[session] = chosen.number
        return chosen
