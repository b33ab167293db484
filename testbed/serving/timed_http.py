"""When a request reached the server: as soon as its last byte is read from the socket."""

import time
from collections.abc import MutableMapping
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

RECEIVED = "testbed.received_s"


class TimedHttp(HttpToolsProtocol):
    """uvicorn's protocol, which notes in the scope of a request when it is whole."""

    def on_message_complete(self) -> None:
        scope = cast(dict[str, Any], self.scope)  # ASGI lets servers add keys of their own
        scope[RECEIVED] = time.monotonic()
        super().on_message_complete()


def received_s(scope: MutableMapping[str, Any]) -> float:
    """When the request was whole, by time.monotonic; now, where no TimedHttp has read it."""
    return float(scope.get(RECEIVED) or time.monotonic())
