"""The bridge between asyncio and an engine: requests that come and go while the engine serves."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from testbed.core.request import PS, Request
from testbed.serving.api_errors import ApiError
from testbed.serving.prometheus_metrics import Metrics
from testbed.serving.request_log import RequestLog
from testbed.serving.served_prompt import Served


class State(NamedTuple):
    """Counts of the sequences in an engine, or in several, each a request as vLLM counts them.

    kv_usage: the share of the pools that is held. preemptions: of whole requests.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0


class Live(ABC):
    """An engine that serves from `start` to `stop`. All methods belong to the thread of the asyncio
    loop. max_len: tokens of the longest sequence. unfinished: what the engine has, by request id.
    speed: seconds of the engine's clock in a second of real time.
    """

    speed = 1.0

    def __init__(self, max_len: int, metrics: Metrics, log: RequestLog | None) -> None:
        self.max_len = max_len
        self.metrics = metrics
        self.log = log
        self.unfinished: dict[int, Served] = {}
        self.num_cancelled = 0
        self._request_ids = count()

    @abstractmethod
    def start(self) -> None:
        """Serve from now on."""

    @abstractmethod
    async def stop(self) -> None:
        """Cancel what is left, and serve no more."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """True if the engine serves."""

    @property
    @abstractmethod
    def state(self) -> State:
        """Counts of the requests in the engine now."""

    @property
    def lags(self) -> tuple[float, float] | None:
        """The seconds of real time by which simulated time is behind, now and at most; None if
        nothing is simulated.
        """
        return None

    @abstractmethod
    def _hand_over(self, served: Served) -> None:
        """The engine gets the request."""

    @abstractmethod
    def _withdraw(self, request_id: int) -> None:
        """Ends a request that is no longer waited for."""

    def next_id(self) -> int:
        """The number of the next request."""
        return next(self._request_ids)

    async def prepare(self, request: Request) -> None:  # noqa: B027 (most have nothing to do)
        """Do what takes long and can be done before a request arrives."""

    async def submit(self, served: Served) -> None:
        """Let the request arrive now. Raises ApiError if it can never run."""
        if not self.is_alive:
            raise ApiError(503, "the engine: has ended (see the server's output)")
        self.unfinished[served.request_id] = served
        self._hand_over(served)
        await served.arrived
        if served.failure is not None:
            raise served.failure

    def cancel(self, served: Served) -> None:
        """The client has gone: free what the request holds."""
        if not served.is_ended and self.is_alive:
            self._withdraw(served.request_id)

    def cancel_all(self) -> None:
        """Free what all requests hold; their clients get an error."""
        for served in list(self.unfinished.values()):
            self.cancel(served)

    def answered(self, served: Served) -> None:
        """The answer is whole; the engine drops the request, if a stop string has ended it."""
        self.cancel(served)

    def _stepped(
        self, served: Served, time_ps: int, steps: Iterable[tuple[int | None, ...]] = ()
    ) -> None:
        """Each sequence of a request has a token more; steps: the tokens to deliver by now. Tokens
        of one time are one output, as in vLLM: with drafts an iteration brings several.
        """
        num_seqs = served.request.num_seqs
        if served.num_steps == 0:
            served.first_ps = time_ps
            waited_s = (time_ps - served.arrival_ps) / PS
            self.metrics.first_token(served.request.prompt_len, waited_s, num_seqs)
        elif time_ps > served.last_ps:
            self.metrics.later_token((time_ps - served.last_ps) / PS, num_seqs)
        served.num_steps += 1
        served.last_ps = time_ps
        self.metrics.tokens(num_seqs)
        for tokens in steps:
            served.deliver(tokens)

    def _finished(self, request_id: int) -> None:
        served = self.unfinished.pop(request_id)
        served.end()
        self._count(served)

    def _rejected(self, request_id: int, reason: str) -> None:
        error = ApiError(400, f"the request: {reason}", code="context_length_exceeded")
        self.unfinished.pop(request_id).end(error)

    def _cancelled(self, request_id: int) -> None:
        served = self.unfinished.pop(request_id)
        if served.is_answered:
            served.end()
            self._count(served)
        else:
            self.num_cancelled += 1
            served.end(ApiError(503, "the request: was cancelled"))

    def _failed(self) -> None:
        """The engine has ended by itself: no call may wait for it."""
        for served in self.unfinished.values():
            served.end(ApiError(500, "the engine: has ended (see the server's output)"))
        self.unfinished.clear()

    def _count(self, served: Served) -> None:
        """A request has its whole answer."""
        arrival_ps = served.arrival_ps
        self.metrics.finished((served.last_ps - arrival_ps) / PS, served.request.num_seqs)
        if self.log is not None:
            times = arrival_ps, served.first_ps, served.last_ps
            self.log.write(served.request.prompt_len, served.num_steps, *times)
