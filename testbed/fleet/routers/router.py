"""The plug-in API for routers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from testbed.core.errors import PlugInError
from testbed.core.request import Incoming
from testbed.fleet.views import EngineView


class Router(ABC):
    """Decides which engine serves a request, when that arrives.

    It sees the request without its output length, and each engine that is up.

    Attributes:
        cache_age_s: None for a router that does not ask for `EngineView.num_cached`; else the age,
            in seconds, of what it knows of the caches. An attribute of the class or of the object,
            which does not change.
        needs_sessions: it makes no sense for requests without sessions.
        looks_at_engines: it reads more of them than their numbers. Each class says so itself: what
            is derived from one that looks at none may look.
    """

    cache_age_s: float | None = None
    needs_sessions: ClassVar[bool] = False
    looks_at_engines: ClassVar[bool] = True

    @abstractmethod
    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        """The engine that serves the request: one of `engines`.

        Args:
            request: without its output length.
            engines: those that are up, in order of number and at least one.
        """


def routed(router: Router, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
    """The router's answer. Raises PlugInError for an answer that is not among the engines."""
    answer = router.route(request, engines)
    if type(answer) is not EngineView or answer not in engines:
        numbers = ", ".join(str(view.number) for view in engines)
        raise PlugInError(
            f"{type(router).__name__}: route() answered {answer!r} for request "
            f"{request.request_id}; it must answer one of the engines that it was given "
            f"({numbers} are up)"
        )
    return answer
