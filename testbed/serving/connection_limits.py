"""Limits of a connection: a head that is too long, or takes too long, ends it; each of its requests
is told of its end.
"""

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from testbed.serving.api_errors import ApiError
from testbed.serving.client_limits import Limits
from testbed.serving.timed_http import TimedHttp


class LimitedHttp(TimedHttp):
    """uvicorn's protocol, which has no such limits itself, and tells the last of several pipelined
    requests alone. limits: of all connections.
    """

    limits = Limits()
    _head_bytes = 0  # what has come of a head after the part with its first byte
    _parsed_bytes = 0  # of a head's path and whole headers
    _is_first_part = False
    _cycles: Sequence[RequestResponseCycle] = ()  # requests that are not answered, one or pipelined
    _deadline: asyncio.TimerHandle | None = None  # while a head is awaited

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_whole()
        self.pipeline.clear()
        for cycle in self._cycles:  # uvicorn tells the last one alone
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._is_first_part = False
        super().data_received(data)
        if self._deadline is not None and not self._is_first_part:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._too_long()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_first_part, self._head_bytes, self._parsed_bytes = True, 0, 0
        if self._deadline is None:
            self._await_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + len(": \r\n"))

    def send_400_response(self, msg: str) -> None:
        if self._parsed_bytes > self.limits.head_bytes:
            self._too_long()
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._head_is_whole()
        super().on_headers_complete()
        unanswered = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles = [*unanswered, self.cycle]

    def _count(self, num_bytes: int) -> None:
        """So much more of a head was parsed; one that is too long ends the parser's work."""
        self._parsed_bytes += num_bytes
        if self._parsed_bytes > self.limits.head_bytes:
            raise ValueError("the head is too long")

    def _too_long(self) -> None:
        message = f"the head: is longer than {self.limits.head_bytes} bytes (send less)"
        self._refuse(ApiError(431, message))

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(self.limits.head_s, self._too_late)

    def _head_is_whole(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # an earlier answer is still on its way
            return
        self._refuse(ApiError(408, f"the head: took over {self.limits.head_s:g} s"))

    def _refuse(self, error: ApiError) -> None:
        self._head_is_whole()
        body = json.dumps(error.body).encode()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def http_with(limits: Limits) -> type[LimitedHttp]:
    """The protocol with these limits: uvicorn makes one for each connection."""
    return type("LimitedHttp", (LimitedHttp,), {"limits": limits})
