"""The end of a server: requests may end for some seconds, then their clients get an error."""

import asyncio
import logging
import socket

import uvicorn

from testbed.serving.live import Live

LEFT_S = 5  # for what is cancelled to end; then uvicorn ends it


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which lets requests end for drain_s seconds, and then cancels them in the
    engine, so that each answer ends with an error. uvicorn's own time must be longer (LEFT_S).
    """

    def __init__(self, config: uvicorn.Config, live: Live, drain_s: int) -> None:
        super().__init__(config)
        self._live = live
        self._drain_s = drain_s
        logging.getLogger("uvicorn.error").addFilter(is_no_cancellation)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._drain_s, self._live.cancel_all)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def is_no_cancellation(record: logging.LogRecord) -> bool:
    """True if a record of uvicorn's is of anything but the task of a request that it has ended."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
