"""A prompt on its way through an engine."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.core.request import Request
from testbed.serving.api_errors import ApiError
from testbed.serving.sequence_text import SequenceText
from testbed.serving.token_draws import Draws


@dataclass(eq=False, slots=True)
class Served:
    """A prompt on its way through the engine. events receives it with the tokens of each step, and
    at its end with none.

    place: the prompt's number within its HTTP request. choices: the sequences that are returned.
    received_s: when that request reached the server, by time.monotonic.
    draws: None if nothing is sampled, or the most likely token is taken. end_ids: tokens that
    end a sequence.
    """

    place: int
    request: Request
    choices: list[SequenceText]
    events: "asyncio.Queue[Event]"
    arrived: "asyncio.Future[None]"
    received_s: float
    draws: Draws | None = None
    end_ids: frozenset[int] = frozenset()
    first_ps: int = 0
    last_ps: int = 0
    num_steps: int = 0
    is_ended: bool = False
    is_answered: bool = False
    failure: ApiError | None = None

    @property
    def request_id(self) -> int:
        """The number of the request."""
        return self.request.request_id

    @property
    def arrival_ps(self) -> int:
        """The time at which the request arrived, by the engine's clock."""
        return self.request.arrival_ps

    def arrive(self, time_ps: int) -> None:
        """The engine has the request since this time."""
        self.request = self.request._replace(arrival_ps=time_ps)

    def accept(self) -> None:
        """The engine has the request."""
        if not self.arrived.done():
            self.arrived.set_result(None)

    def deliver(self, tokens: Iterable[int | None]) -> None:
        """Each sequence has another token; None if the token has no id."""
        self.events.put_nowait((self, tuple(tokens)))

    def end(self, failure: ApiError | None = None) -> None:
        """The engine has no more of it; failure: why the answer is not whole."""
        self.failure, self.is_ended = failure, True
        self.accept()
        self.events.put_nowait((self, ()))


Event = tuple[Served, tuple[int | None, ...]]
