"""A user-supplied workload: requests with their times, or lengths in a data frame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Rows, Workload
from testbed.core.units import LAST_S
from testbed.run.override_words import key_of
from testbed.traces.csv_lengths import RESULTS, CsvLengths
from testbed.traces.files import places_of
from testbed.traces.reader import Trace

NAMES = {  # names that a data frame's columns may have
    "input": ("prompt_len", "input_tokens", "prompt_tokens"),
    "output": ("output_len", "output_tokens"),
    "num_seqs": ("n", "num_seqs"),
}
MISSING = ("None", "nan", "NaT", "<NA>")  # texts of a data frame's missing values
TIMES = "arrival_s"
TIMING = ("arrivals", "rate", "duration_s")
OF_REQUESTS = (*TIMING, "workload", "num_seqs", "beam", "max_len")
LEAST: Mapping[str, int | None] = {  # None: any whole number
    "request_id": 0,
    "arrival_ps": 0,
    "prompt_len": 1,
    "output_len": 1,
    "num_seqs": 1,
    "registered_prefix": 0,
    "tokens_per_id": 1,
    "session": 0,
    "priority": None,
    "answer_id": 0,
}
MAY_LACK = ("session", "answer_id")


@dataclass(frozen=True)
class UserRequests(Workload):
    """Requests that the caller built; rows: their lengths."""

    requests: tuple[Request, ...] = ()

    def optional_fields(self) -> tuple[str, ...]:
        """The columns that the requests have, of `session`, `priority` (0 is that of a request
        without) and `max_new_tokens`.
        """
        with_session = any(request.session is not None for request in self.requests)
        with_priority = any(request.priority for request in self.requests)
        declares = any(request.max_new_tokens is not None for request in self.requests)
        named = {
            "session": with_session,
            "priority": with_priority,
            "max_new_tokens": declares,
        }
        return tuple(name for name, is_there in named.items() if is_there)

    @property
    def has_samples(self) -> bool:
        """True if any request generates several sequences."""
        return any(request.num_seqs > 1 for request in self.requests)

    @property
    def names_contents(self) -> bool:
        """True if any request says what its prompt contains."""
        return any(
            request.prompt_ids is not None or request.registered_prefix for request in self.requests
        )

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class FrameTrace(CsvLengths):
    """The rows of a data frame, read as the rows of a CSV.

    Required columns: prompt and output lengths in tokens. Optional ones: arrival_s (s), prompt_ids,
    the number of sequences, beam, session and priority.
    """

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.columns = tuple(map(str, frame.columns))
        named: dict[str, Any] = {}
        for what, names in NAMES.items():
            present = [name for name in names if name in self.columns] or names[:1]
            if len(present) > 1:
                raise InputError(
                    key="trace",
                    problem=(
                        f"the data frame has columns {' and '.join(present)}, which are the same"
                    ),
                    remedy="keep one",
                )
            named[f"{what}_column"] = present[0]
        super().__init__("the data frame", tokens_per_id=1, **named)

    def table(self, names: Sequence[str], optional: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The named columns as text, and the optional ones that exist."""
        places = places_of(self.path, self.columns, names, optional, RESULTS)
        return {name: list(map(text, self._frame.iloc[:, place])) for name, place in places.items()}


def text(value: Any) -> str:
    """The text of a CSV cell, empty for a missing value; several values, such as a prompt's ids,
    are separated by spaces.
    """
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return "" if str(value) in MISSING else str(value)
    return " ".join(map(str, value))


def user_trace(options: Mapping[str, Any], words: Sequence[str]) -> Workload | Trace | None:
    """The option `trace` if it is a list of requests or a data frame; else None.

    words: the overrides on the command line.
    """
    trace = options.get("trace")
    if isinstance(trace, list):
        keys = [*options, *(key_of(word) for word in words)]
        requested = next((key for key in keys if key.partition(".")[0] in OF_REQUESTS), None)
        if requested:
            raise InputError(
                key=requested,
                problem="does not apply to a list of requests, which have these values",
                remedy="remove it",
            )
        return user_requests(trace)
    return FrameTrace(trace) if hasattr(trace, "columns") and hasattr(trace, "iloc") else None


def user_requests(requests: Sequence[Any]) -> UserRequests:
    """The requests in order of arrival; raises InputError for other objects and wrong values."""
    wrong = next((item for item in requests if not isinstance(item, Request)), None)
    if wrong is not None:
        raise InputError(
            key="trace",
            problem=f"a list must contain testbed.core.request.Request, not {type(wrong).__name__}",
        )
    ordered = tuple(sorted(map(plain_request, requests), key=lambda request: request.arrival_ps))
    if len({request.request_id for request in ordered}) < len(ordered):
        raise InputError(key="trace", problem="two requests have the same request_id")
    limits = [request.max_new_tokens for request in ordered]
    listed = [request.prompt_ids for request in ordered if request.prompt_ids is not None]
    rows = Rows(
        prompt_len=np.array([request.prompt_len for request in ordered], dtype=np.int64),
        output_len=np.array([request.output_len for request in ordered], dtype=np.int64),
        arrival_s=np.array([request.arrival_ps / PS for request in ordered]),
        prompt_ids=listed if ordered and len(listed) == len(ordered) else None,
        tokens_per_id=the_only(
            "tokens_per_id",
            {request.tokens_per_id for request in ordered if request.prompt_ids is not None},
            1,
        ),
        max_new_tokens=None if None in limits else np.array(limits, dtype=np.int64),
        registered_prefix=the_only(
            "registered prefix", {request.registered_prefix for request in ordered} - {0}, 0
        ),
    )
    times = np.array([request.arrival_ps for request in ordered], dtype=np.int64)
    return UserRequests(rows, times, requests=ordered)


def the_only(name: str, values: set[int], otherwise: int) -> int:
    """The only value of a list's requests, or `otherwise` if there is none."""
    if len(values) > 1:
        raise InputError(
            key="trace",
            problem=(
                f"the requests have more than one {name}, {sorted(values)}; a list may have one"
            ),
        )
    return next(iter(values), otherwise)


def plain_request(original: Request) -> Request:
    """The request with plain Python numbers, each checked against its range."""
    name = f"trace: request {original.request_id!r}"
    values: dict[str, Any] = {
        field: plain_int(f"{name}: {field}", value, least)
        for field, least in LEAST.items()
        if (value := getattr(original, field)) is not None or field not in MAY_LACK
    }
    request = original._replace(**values, max_new_tokens=plain_limit(name, original))
    if not is_truth_value(original.beam):
        raise InputError(
            key=f"{name}: beam", value=repr(original.beam), problem="must be True or False"
        )
    if request.arrival_ps > LAST_S * PS:
        raise InputError(
            key=name,
            problem=f"arrives at {request.arrival_ps / PS:,.6g} s; time ends at {LAST_S:,} s",
        )
    if request.registered_prefix > request.prompt_len:
        raise InputError(
            key=name,
            problem=f"its prefix of {request.registered_prefix} tokens is longer than its prompt",
        )
    return request._replace(beam=bool(original.beam), prompt_ids=plain_ids(name, request))


def plain_limit(name: str, request: Request) -> int | None:
    """The declared output tokens, at least the true ones; None if none are declared."""
    if request.max_new_tokens is None:
        return None
    return plain_int(f"{name}: max_new_tokens", request.max_new_tokens, request.output_len)


def plain_ids(name: str, request: Request) -> tuple[int, ...] | None:
    """The ids of the prompt, as Python's own numbers: one for each tokens_per_id tokens, of which
    the last may be left out if it stands for fewer.
    """
    tokens_per_id = request.tokens_per_id
    if request.prompt_ids is None:
        if tokens_per_id != 1:
            raise InputError(
                key=name,
                problem=f"tokens_per_id={tokens_per_id} without prompt_ids",
                remedy="leave it out",
            )
        return None
    if not hasattr(request.prompt_ids, "__len__"):
        raise InputError(
            key=f"{name}: prompt_ids",
            value=repr(request.prompt_ids),
            problem="must be a tuple of ids",
        )
    ids = tuple(
        plain_int(f"{name}: one of prompt_ids", value, least=None) for value in request.prompt_ids
    )
    num_whole, num_rest = divmod(request.prompt_len, tokens_per_id)
    if not num_whole <= len(ids) <= num_whole + bool(num_rest):
        raise InputError(
            key=name,
            problem=(
                f"{len(ids)} prompt_ids of {tokens_per_id} tokens each do not name a prompt of "
                f"{request.prompt_len} tokens"
            ),
        )
    return ids


def plain_int(name: str, value: Any, least: int | None) -> int:
    """The value as an int; unless `least` is None, it must be at least that and fit 64 bits."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(key=name, value=repr(value), problem="must be a whole number") from None
    if is_truth_value(value):
        raise InputError(key=name, value=repr(value), problem="must be a whole number")
    if least is not None and not least <= number < 1 << 63:
        raise InputError(
            key=name, value=number, problem=f"must be at least {least}, and fit into 64 bits"
        )
    return number


def is_truth_value(value: Any) -> bool:
    """True if it is a bool, of Python or of NumPy."""
    return type(value).__name__ in ("bool", "bool_")
