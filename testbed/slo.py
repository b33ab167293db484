"""Service level objectives: how many requests were answered as fast as they had to be."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.sim.rows import PackedRows


class Slo(NamedTuple):
    """What a request must keep to count: seconds to the first token, seconds per later output token; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


def checked_slo(ttft_s: Any, tpot_s: Any) -> Slo:
    """The objectives as given, which must be above zero, or None."""
    for name, value in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            raise InputError(f"slo.{name} is {value!r}; it must be a number of seconds above 0, or null")
    return Slo(ttft_s, tpot_s)


def kept(log: PackedRows, slo: Slo) -> NDArray[np.bool_]:
    """Of every request that has ended, whether it kept the objectives; one that was rejected did not.

    An output of one token has no later ones, so it has no time per output token to keep.
    """
    columns = log.columns()
    arrival, first, finish, output_len = (
        columns[name] for name in ("arrival_ps", "first_token_ps", "finish_ps", "output_len")
    )
    inside = finish >= 0
    if slo.ttft_s is not None:
        inside &= (first - arrival) / PS <= slo.ttft_s
    if slo.tpot_s is not None:
        inside &= (finish - first) / PS <= slo.tpot_s * (output_len - 1)
    return inside


def goodput(log: PackedRows, slo: Slo, simulated_s: float) -> dict[str, float | None]:
    """The objectives in s; the share of ended requests that kept them, and how many of those there were a second."""
    inside = int(kept(log, slo).sum()) if slo else None
    return {
        "ttft_s": slo.ttft_s,
        "tpot_s": slo.tpot_s,
        "share_inside": None if inside is None or not len(log) else inside / len(log),
        "goodput_requests_per_s": None if inside is None or not simulated_s else inside / simulated_s,
    }
