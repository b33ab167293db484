"""A user-supplied workload: requests with their times, or lengths in a data frame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Rows, Workload
from testbed.core.units import LAST_S
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.files import places_of
from testbed.traces.reader import Trace

NAMES = {  # that a data frame's columns may have
    "input": ("prompt_len", "input_tokens", "prompt_tokens"),
    "output": ("output_len", "output_tokens"),
    "num_seqs": ("n", "num_seqs"),
}
TIMES = "arrival_s"
TIMING = ("arrivals", "rate", "duration_s")
OF_REQUESTS = (*TIMING, "workload", "num_seqs", "beam", "max_len")
LEAST = {
    "request_id": 0,
    "arrival_ps": 0,
    "prompt_len": 1,
    "output_len": 1,
    "num_seqs": 1,
    "registered_prefix": 0,
    "tokens_per_id": 1,
}


@dataclass(frozen=True)  # without slots, which would hide those of a compiled Workload
class UserRequests(Workload):
    """Requests that the caller built; `rows` are their lengths."""

    requests: tuple[Request, ...] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class FrameTrace(CsvLengths):
    """Rows of a data frame, as of a CSV: prompt and output lengths in tokens; where these are
    columns, arrival_s in seconds, and each request's prompt_ids, sampling (n sequences, whether
    they are a beam), session and priority.
    """

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.columns = tuple(map(str, frame.columns))
        named = {}
        for what, names in NAMES.items():
            present = [name for name in names if name in self.columns] or names[:1]
            if len(present) > 1:
                raise InputError(
                    f"trace: the data frame has columns {' and '.join(present)}, which are the "
                    f"same (keep one)"
                )
            named[f"{what}_column"] = present[0]
        super().__init__("the data frame", tokens_per_id=1, **named)

    def table(self, names: Sequence[str], optional: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The named columns as text, optional ones where there are such."""
        places = places_of(self.path, self.columns, names, optional)
        return {name: list(map(text, self._frame.iloc[:, place])) for name, place in places.items()}


def text(value: Any) -> str:
    """A value as a CSV has it; of several, such as the ids of a prompt, with spaces between."""
    return (
        str(value)
        if isinstance(value, str) or not hasattr(value, "__len__")
        else " ".join(map(str, value))
    )


def user_trace(options: Mapping[str, Any], words: Sequence[str]) -> Workload | Trace | None:
    """The option `trace` as a workload or a trace, where it is a list of requests or a data frame;
    else None. `words` are the other overrides.
    """
    trace = options.get("trace")
    if isinstance(trace, list):
        keys = [*options, *(word.partition("=")[0].lstrip("+~") for word in words)]
        requested = next((key for key in keys if key.partition(".")[0] in OF_REQUESTS), None)
        if requested:
            raise InputError(
                f"{requested}: does not apply to a list of requests, which have these values "
                f"(remove it)"
            )
        return user_requests(trace)
    return FrameTrace(trace) if hasattr(trace, "columns") and hasattr(trace, "iloc") else None


def user_requests(requests: Sequence[Any]) -> UserRequests:
    """The requests in order of arrival, with Python numbers; raises InputError for other
    objects.
    """
    wrong = next((item for item in requests if not isinstance(item, Request)), None)
    if wrong is not None:
        raise InputError(
            f"trace: a list must contain testbed.core.request.Request, not {type(wrong).__name__}"
        )
    ordered = tuple(sorted(map(plain_request, requests), key=lambda request: request.arrival_ps))
    if len({request.request_id for request in ordered}) < len(ordered):
        raise InputError("trace: two requests have the same request_id")
    listed = [request.prompt_ids for request in ordered if request.prompt_ids is not None]
    rows = Rows(
        np.array([request.prompt_len for request in ordered], dtype=np.int64),
        np.array([request.output_len for request in ordered], dtype=np.int64),
        np.array([request.arrival_ps / PS for request in ordered]),
        listed if ordered and len(listed) == len(ordered) else None,
        the_only(
            "tokens_per_id",
            {request.tokens_per_id for request in ordered if request.prompt_ids is not None},
            1,
        ),
        the_only("registered prefix", {request.registered_prefix for request in ordered} - {0}, 0),
    )
    times = np.array([request.arrival_ps for request in ordered], dtype=np.int64)
    return UserRequests(rows, times, requests=ordered)


def the_only(name: str, values: set[int], otherwise: int) -> int:
    """The one value that the requests of a list have, or `otherwise` where none has any."""
    if len(values) > 1:
        raise InputError(
            f"trace: the requests have more than one {name}, {sorted(values)}; a list may have one"
        )
    return next(iter(values), otherwise)


def plain_request(given: Request) -> Request:
    """The request, its numbers as Python's own, each in its range."""
    name = f"trace: request {given.request_id!r}"
    values: dict[str, Any] = {
        field: whole(f"{name}: {field}", getattr(given, field), least)
        for field, least in LEAST.items()
    }
    session = None if given.session is None else whole(f"{name}: session", given.session, None)
    request = given._replace(
        **values, session=session, priority=whole(f"{name}: priority", given.priority, None)
    )
    if type(given.beam).__name__ not in ("bool", "bool_"):
        raise InputError(f"{name}: beam is {given.beam!r}; it must be True or False")
    if request.arrival_ps > LAST_S * PS:
        raise InputError(
            f"{name} arrives at {request.arrival_ps / PS:,.6g} s; time ends at {LAST_S:,} s"
        )
    if request.registered_prefix > request.prompt_len:
        raise InputError(
            f"{name}: its prefix of {request.registered_prefix} tokens is longer than its prompt"
        )
    if request.prompt_ids is None:
        return request._replace(beam=bool(given.beam))
    ids = tuple(
        whole(f"{name}: one of prompt_ids", prompt_id, None) for prompt_id in request.prompt_ids
    )
    if len(ids) < request.prompt_len // request.tokens_per_id:
        named = f"{len(ids)} prompt_ids of {request.tokens_per_id} tokens each"
        raise InputError(f"{name}: {named} do not name a prompt of {request.prompt_len} tokens")
    return request._replace(beam=bool(given.beam), prompt_ids=ids)


def whole(name: str, value: Any, least: int | None) -> int:
    """The value as Python's own whole number, at least `least` and within 64 bits where that is not
    None.
    """
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; it must be a whole number") from None
    if least is not None and not least <= number < 1 << 63:
        raise InputError(f"{name} is {number}; it must be at least {least}, and fit into 64 bits")
    return number
