"""Messages between a server and the process of its engine."""

from typing import NamedTuple, TypeAlias

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.serving.live import State
from testbed.serving.token_draws import Draws


class Submitted(NamedTuple):
    """A request arrives. draws: how its tokens are drawn, None for the most likely ones; end_ids:
    tokens that end a sequence.
    """

    request: Request
    draws: Draws | None
    end_ids: frozenset[int]


class Withdrawn(NamedTuple):
    """The client has withdrawn the request."""

    request_id: int


class Closed(NamedTuple):
    """No request will come: end when nothing is left."""


class Ready(NamedTuple):
    """The engine serves from now on. vocab_size: token ids are below it."""

    vocab_size: int


class Refused(NamedTuple):
    """The engine cannot be built; error: why."""

    error: InputError


class Arrived(NamedTuple):
    """The engine has the request since this time."""

    request_id: int
    time_ps: int


class Stepped(NamedTuple):
    """Each sequence has another token. tokens: [num_steps][num_seqs] that are known by now, none
    of a beam before its end; then the most likely sequence first.
    """

    request_id: int
    time_ps: int
    tokens: tuple[tuple[int, ...], ...]


class Finished(NamedTuple):
    """The request has its whole output."""

    request_id: int


class Rejected(NamedTuple):
    """The request could never run; reason: why."""

    request_id: int
    reason: str


class Cancelled(NamedTuple):
    """The request has left; what it held is free."""

    request_id: int


Message: TypeAlias = Submitted | Withdrawn | Closed
Event: TypeAlias = Arrived | Stepped | Finished | Rejected | Cancelled


class News(NamedTuple):
    """Tokens and ends of one iteration, and counts of the engine after it."""

    events: list[Event]
    state: State
