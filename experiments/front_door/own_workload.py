"""A workload of the caller's own: requests with their times, or lengths in a data frame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Rows, Workload
from traces.reader import FileTrace, Trace

PROMPTS = ("prompt_len", "input_tokens", "prompt_tokens")
OUTPUTS = ("output_len", "output_tokens")
TIMES = "arrival_s"
TIMING = ("arrivals", "rate", "duration_s")


class Own(NamedTuple):
    """What stands in for the trace, and whether its own time stamps are played back."""

    workload: Workload | Trace | None = None
    replays: bool = False


@dataclass(frozen=True)  # without slots: those of a compiled Workload would be hidden behind them
class OwnRequests(Workload):
    """Requests as the caller has made them; `rows` are their lengths."""

    requests: tuple[Request, ...] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class FrameTrace(FileTrace):
    """Rows of a data frame: prompt and output lengths in tokens, with arrival_s in seconds where it is a column."""

    def __init__(self, frame: Any) -> None:
        super().__init__("the data frame")
        self._frame = frame

    def read(self) -> Rows:
        """All rows in their order."""
        prompts, outputs = (self._lengths(names) for names in (PROMPTS, OUTPUTS))
        if TIMES not in self._frame:
            return Rows(prompts, outputs)
        times = np.asarray(self._frame[TIMES], dtype=np.float64)
        if not np.isfinite(times).all():
            raise InputError(f"trace: row {int(np.argmin(np.isfinite(times)))} of {TIMES} is no finite number")
        return Rows(prompts, outputs, times)

    def _lengths(self, names: Sequence[str]) -> np.ndarray:
        name = next((name for name in names if name in self._frame), None)
        if name is None:
            raise InputError(f"trace: the data frame has no column {' or '.join(names)}")
        column = np.asarray(self._frame[name])
        if column.dtype.kind not in "iu":
            raise InputError(f"trace: column {name} of the data frame has {column.dtype}; lengths are whole numbers")
        return column.astype(np.int64)


def own_workload(options: Mapping[str, Any]) -> Own:
    """What the option `trace` brings along; nothing where it is a name, a class or a trace that is made already."""
    trace = options.get("trace")
    if isinstance(trace, list):
        asked = [name for name in TIMING if name in options]
        if asked:
            raise InputError(f"{asked[0]} does not go with a list of requests, which have times of their own")
        return Own(own_requests(trace))
    if trace is not None and hasattr(trace, "columns") and hasattr(trace, "iloc"):
        return Own(FrameTrace(trace), TIMES in trace.columns and not any(name in options for name in TIMING))
    return Own()


def own_requests(requests: Sequence[Any]) -> OwnRequests:
    """The requests in order of arrival, if that is what they are."""
    wrong = next((item for item in requests if not isinstance(item, Request)), None)
    if wrong is not None:
        raise InputError(f"trace: a list must hold testbed.core.request.Request, not {type(wrong).__name__}")
    if len({request.request_id for request in requests}) < len(requests):
        raise InputError("trace: two requests have the same request_id")
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_ps))
    if ordered and ordered[0].arrival_ps < 0:
        raise InputError(f"trace: request {ordered[0].request_id} arrives at {ordered[0].arrival_ps} ps, before 0")
    ids = [request.prompt_ids for request in ordered]
    known = [one for one in ids if one is not None]
    rows = Rows(
        np.array([request.prompt_len for request in ordered], dtype=np.int64),
        np.array([request.output_len for request in ordered], dtype=np.int64),
        np.array([request.arrival_ps / PS for request in ordered]),
        known if ordered and len(known) == len(ids) else None,
        ordered[0].tokens_per_id if ordered else 1,
        max((request.prefix for request in ordered), default=0),
    )
    times = np.array([request.arrival_ps for request in ordered], dtype=np.int64)
    return OwnRequests(rows, times, requests=ordered)
