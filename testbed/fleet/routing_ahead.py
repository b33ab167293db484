"""Routing before the run: the answers of a router that looks at no engine depend on the requests
alone, so that each engine takes its own as they arrive, without an event for each.
"""

from collections.abc import Iterable
from typing import Any

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.fleet.routers.router import Router, routed
from testbed.fleet.views import EngineView


class Unseen:
    """Stands for an engine in the views of a router that looks at none."""

    def __init__(self, router: Router) -> None:
        self._name = type(router).__name__

    def __getattr__(self, name: str) -> Any:
        raise PlugInError(
            f"{self._name} looks at an engine, and its class says the opposite "
            f"(looks_at_engines = False)"
        )


def looks_at_engines(router: Router) -> bool:
    """False if the class of the router says so itself: one derived from it may look."""
    return bool(vars(type(router)).get("looks_at_engines", True))


def routed_ahead(
    router: Router, requests: Iterable[Request], num_engines: int
) -> list[list[Request]]:
    """The requests of each engine, if none of them ever fails."""
    unseen: Any = Unseen(router)
    views = [EngineView(number, unseen, unseen) for number in range(num_engines)]
    shares: list[list[Request]] = [[] for _ in views]
    for request in requests:
        shares[routed(router, request.incoming, views).number].append(request)
    return shares
