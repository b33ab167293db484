"""Service level objectives: the requests that meet them, and the goodput."""

import numpy as np
from numpy.typing import NDArray

from testbed.config import Slo as Slo
from testbed.core.request import PS
from testbed.sim.recorder import PackedRows


def kept(log: PackedRows, slo: Slo) -> NDArray[np.bool_]:
    """Whether each request that has ended met the objectives; a rejected request did not.

    The TPOT limit does not apply to an output of one token.
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
    """The objectives in s, the share of ended requests that met them, and the rate of those in requests/s."""
    inside = int(kept(log, slo).sum()) if slo else None
    return {
        "ttft_s": slo.ttft_s,
        "tpot_s": slo.tpot_s,
        "share_inside": None if inside is None or not len(log) else inside / len(log),
        "goodput_requests_per_s": None if inside is None or not simulated_s else inside / simulated_s,
    }
