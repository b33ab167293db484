"""The unit of bare time stamps. A number has none, so the one that its format says is held against
the gaps between requests.
"""

from typing import Any, Literal, TypeAlias, get_args

from testbed.core.errors import InputError
from testbed.traces.length_model import Floats
from testbed.traces.reader import FileTrace

TimeUnit: TypeAlias = Literal["us", "ms", "s"]
PER_S: dict[TimeUnit, float] = {"us": 1e6, "ms": 1e3, "s": 1.0}
WORDS: dict[TimeUnit, str] = {"us": "microseconds", "ms": "milliseconds", "s": "seconds"}
FEW, BUSY = 100, 100.0  # requests, and requests/s, beyond which a trace names its unit
SOME, IDLE_S = 10, 100.0  # requests, and seconds between two on average, beyond which it does too
KEY = "trace.time_unit"
NAMED = "give trace.time_unit=us, ms or s, the one that they have"


def checked_unit(unit: Any) -> TimeUnit | None:
    """The unit of trace.time_unit; raises InputError for another word."""
    if unit is not None and unit not in PER_S:
        problem = f"must be one of {', '.join(get_args(TimeUnit))}"
        raise InputError(key=KEY, value=repr(unit), problem=problem)
    checked: TimeUnit | None = unit
    return checked


class BareTimes(FileTrace):
    """A trace whose times of arrival are numbers. time_unit: us, ms or s; None: the unit that the
    format says, refused at an unlikely pace.
    """

    def __init__(self, path: str, time_unit: TimeUnit | None = None) -> None:
        super().__init__(path)
        self.time_unit = checked_unit(time_unit)


def in_seconds(path: str, times: Floats, unit: TimeUnit | None, usual: TimeUnit = "s") -> Floats:
    """Times of arrival in seconds. unit: None for the usual one, in which the requests then must
    come at a likely pace. Raises InputError if they do not.
    """
    if unit is None:
        _check_pace(path, times, usual)
    return times / PER_S[unit or usual]


def _check_pace(path: str, times: Floats, unit: TimeUnit) -> None:
    """Raise InputError for a file whose times are unlikely to be in this unit."""
    num_requests = len(times)
    span = float(times.max() - times.min()) if num_requests else 0.0
    if num_requests < SOME or not span:  # all at once, in any unit
        return
    span_s = span / PER_S[unit]
    too_fast = num_requests >= FEW and span_s * BUSY < num_requests
    if too_fast or span_s > IDLE_S * num_requests:
        raise InputError(
            key=path,
            problem=f"its {num_requests:,} requests come within {span:,.0f} {unit}",
            remedy=NAMED,
        )
