"""An engine on a GPU behind asyncio, in a process of its own, so that neither waits for the other's
Python.
"""

import asyncio
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from testbed.core.errors import InputError
from testbed.serving.live import Live, State
from testbed.serving.messages import (
    Arrived,
    Cancelled,
    Closed,
    Event,
    Finished,
    Message,
    News,
    Ready,
    Refused,
    Rejected,
    Stepped,
    Submitted,
    Withdrawn,
)
from testbed.serving.prometheus_metrics import Metrics
from testbed.serving.request_log import RequestLog
from testbed.serving.served_prompt import Served

STOP_S = 30.0  # an iteration, and the end of the process, take less

Serve = Callable[..., None]


class EngineProcess:
    """A process that serves a connection. It ends with this one.

    serve: called there with the connection and these arguments; it answers Ready, or Refused, and
    InputError is raised here.
    """

    def __init__(self, serve: Serve, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA and threads survive no fork
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            answer = self.connection.recv()
        except EOFError:
            raise InputError(
                key="engine", problem="has ended at its start", remedy="see its output"
            ) from None
        if isinstance(answer, Refused):
            raise answer.error
        assert isinstance(answer, Ready)
        self.vocab_size = answer.vocab_size

    def terminate(self) -> None:
        """End the process at once."""
        self._process.terminate()

    def end(self) -> None:
        """Wait until the process has ended; end it if it does not."""
        self._process.join(STOP_S)
        if self._process.is_alive():
            self.terminate()


class LiveGpu(Live):
    """The engine of another process; its messages are handled in the asyncio loop."""

    def __init__(
        self,
        process: EngineProcess,
        max_len: int,
        metrics: Metrics,
        log: RequestLog | None = None,
    ) -> None:
        super().__init__(max_len, metrics, log)
        self.engine_process = process
        self._state = State()
        self._is_alive = False
        self._ended = asyncio.Event()

    def start(self) -> None:
        self._is_alive = True
        asyncio.get_running_loop().add_reader(
            self.engine_process.connection.fileno(), self._receive
        )

    async def stop(self) -> None:
        if self._is_alive:
            self._send(Closed())
            await asyncio.wait([asyncio.create_task(self._ended.wait())], timeout=STOP_S)
        self._end()
        await asyncio.to_thread(self.engine_process.end)
        if self.log is not None:
            self.log.close()

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    @property
    def state(self) -> State:
        return self._state

    def _hand_over(self, served: Served) -> None:
        self._send(Submitted(served.request, served.draws, served.end_ids))

    def _withdraw(self, request_id: int) -> None:
        self._send(Withdrawn(request_id))

    def _send(self, message: Message) -> None:
        try:
            self.engine_process.connection.send(message)
        except OSError:
            self._end()

    def _receive(self) -> None:
        try:
            while self.engine_process.connection.poll():
                self._read(self.engine_process.connection.recv())
        except (EOFError, OSError):
            self._end()

    def _read(self, news: News) -> None:
        self._state = news.state
        for event in news.events:
            self._follow(event)

    def _follow(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._stepped(self.unfinished[event.request_id], event.time_ps, event.tokens)
        elif isinstance(event, Arrived):
            served = self.unfinished[event.request_id]
            served.arrive(event.time_ps)
            served.accept()
        elif isinstance(event, Finished):
            self._finished(event.request_id)
        elif isinstance(event, Cancelled):
            self._cancelled(event.request_id)
        elif isinstance(event, Rejected):
            self._rejected(event.request_id, event.reason)

    def _end(self) -> None:
        """The process serves no more."""
        if self._is_alive:
            self._is_alive = False
            asyncio.get_running_loop().remove_reader(self.engine_process.connection.fileno())
            self._ended.set()
            self._failed()
