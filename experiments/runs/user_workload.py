"""A user-supplied workload: requests with their times, or lengths in a data frame."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Rows, Workload
from testbed.schema import LAST_S
from testbed.traces.files import flags, lengths, numbered, seconds, whole_numbers
from testbed.traces.reader import FileTrace, Trace

PROMPTS = ("prompt_len", "input_tokens", "prompt_tokens")
OUTPUTS = ("output_len", "output_tokens")
TIMES, NUM_SEQS, BEAM, SESSION, PRIORITY = "arrival_s", "n", "beam", "session", "priority"
TIMING = ("arrivals", "rate", "duration_s")
OF_REQUESTS = (*TIMING, "workload", "num_seqs", "beam", "max_len")
LEAST = {
    "request_id": 0, "arrival_ps": 0, "prompt_len": 1, "output_len": 1, "num_seqs": 1, "registered_prefix": 0,
    "tokens_per_id": 1,
}  # fmt: skip


@dataclass(frozen=True)  # without slots, which would hide those of a compiled Workload
class UserRequests(Workload):
    """Requests that the caller built; `rows` are their lengths."""

    requests: tuple[Request, ...] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class FrameTrace(FileTrace):
    """Rows of a data frame: prompt and output lengths in tokens; with arrival_s in seconds, and with the sampling of
    each request (n sequences, whether they are a beam), its session and its priority, where these are columns."""

    def __init__(self, frame: Any) -> None:
        super().__init__("the data frame")
        self._frame = frame
        self.columns = tuple(frame.columns)

    def read(self) -> Rows:
        """All rows in their order."""
        prompts, outputs = (self._column(lengths, *names) for names in (PROMPTS, OUTPUTS))
        if prompts is None or outputs is None:
            wanted = " or ".join(PROMPTS if prompts is None else OUTPUTS)
            raise InputError(f"trace: the data frame has no column {wanted}")
        return Rows(
            prompts, outputs, self._column(seconds, TIMES), num_seqs=self._column(lengths, NUM_SEQS),
            beam=self._column(flags, BEAM), priority=self._column(whole_numbers, PRIORITY),
            session=self._column(lambda path, name, texts: numbered(texts), SESSION),
        )  # fmt: skip

    def _column(self, read: Callable[[str, str, Sequence[str]], Any], *names: str) -> Any:
        name = next((name for name in names if name in self._frame), None)
        return None if name is None else read(self.path, name, [str(value) for value in self._frame[name]])


def user_trace(options: Mapping[str, Any], words: Sequence[str]) -> Workload | Trace | None:
    """The option `trace` as a workload or a trace, where it is a list of requests or a data frame; else None. `words`
    are the other overrides."""
    trace = options.get("trace")
    if isinstance(trace, list):
        keys = [*options, *(word.partition("=")[0].lstrip("+~") for word in words)]
        requested = next((key for key in keys if key.partition(".")[0] in OF_REQUESTS), None)
        if requested:
            raise InputError(f"{requested}: does not apply to a list of requests, which have these values (remove it)")
        return user_requests(trace)
    return FrameTrace(trace) if hasattr(trace, "columns") and hasattr(trace, "iloc") else None


def user_requests(requests: Sequence[Any]) -> UserRequests:
    """The requests in order of arrival, with Python numbers; raises InputError for other objects."""
    wrong = next((item for item in requests if not isinstance(item, Request)), None)
    if wrong is not None:
        raise InputError(f"trace: a list must contain testbed.core.request.Request, not {type(wrong).__name__}")
    ordered = tuple(sorted(map(plain_request, requests), key=lambda request: request.arrival_ps))
    if len({request.request_id for request in ordered}) < len(ordered):
        raise InputError("trace: two requests have the same request_id")
    known = [request.prompt_ids for request in ordered if request.prompt_ids is not None]
    rows = Rows(
        np.array([request.prompt_len for request in ordered], dtype=np.int64),
        np.array([request.output_len for request in ordered], dtype=np.int64),
        np.array([request.arrival_ps / PS for request in ordered]),
        known if ordered and len(known) == len(ordered) else None,
        the_only("tokens_per_id", {request.tokens_per_id for request in ordered if request.prompt_ids is not None}, 1),
        the_only("registered prefix", {request.registered_prefix for request in ordered} - {0}, 0),
    )
    times = np.array([request.arrival_ps for request in ordered], dtype=np.int64)
    return UserRequests(rows, times, requests=ordered)


def the_only(name: str, found: set[int], otherwise: int) -> int:
    """The one value that the requests of a list have, or `otherwise` where none has any."""
    if len(found) > 1:
        raise InputError(f"trace: the requests have more than one {name}, {sorted(found)}; a list may have one")
    return next(iter(found), otherwise)


def plain_request(given: Request) -> Request:
    """The request, its numbers as Python's own, each in its range."""
    name = f"trace: request {given.request_id!r}"
    values: dict[str, Any] = {
        field: whole(f"{name}: {field}", getattr(given, field), least) for field, least in LEAST.items()
    }
    session = None if given.session is None else whole(f"{name}: session", given.session, None)
    request = given._replace(**values, session=session, priority=whole(f"{name}: priority", given.priority, None))
    if type(given.beam).__name__ not in ("bool", "bool_"):
        raise InputError(f"{name}: beam is {given.beam!r}; it must be True or False")
    if request.arrival_ps > LAST_S * PS:
        raise InputError(f"{name} arrives at {request.arrival_ps / PS:,.6g} s; time ends at {LAST_S:,} s")
    if request.registered_prefix > request.prompt_len:
        raise InputError(f"{name}: its prefix of {request.registered_prefix} tokens is longer than its prompt")
    if request.prompt_ids is None:
        return request._replace(beam=bool(given.beam))
    ids = tuple(whole(f"{name}: one of prompt_ids", one, None) for one in request.prompt_ids)
    if len(ids) < request.prompt_len // request.tokens_per_id:
        named = f"{len(ids)} prompt_ids of {request.tokens_per_id} tokens each"
        raise InputError(f"{name}: {named} do not name a prompt of {request.prompt_len} tokens")
    return request._replace(beam=bool(given.beam), prompt_ids=ids)


def whole(name: str, value: Any, least: int | None) -> int:
    """The value as Python's own whole number, at least `least` and within 64 bits where that is not None."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; it must be a whole number") from None
    if least is not None and not least <= number < 1 << 63:
        raise InputError(f"{name} is {number}; it must be at least {least}, and fit into 64 bits")
    return number
