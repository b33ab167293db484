"""The metrics by which a simulated server is held against a real one, as experiments/REAL_SERVERS.md defines them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
CENTILES = (50, 90, 99)


class Times(NamedTuple):
    """When requests arrived, had their first token and were done, in seconds; and their output tokens."""

    arrival_s: Seconds
    first_token_s: Seconds
    finish_s: Seconds
    output_len: NDArray[np.int64]


class Compared(NamedTuple):
    """One metric of one log."""

    log: str
    metric: str
    real: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """How far the simulation is off, in percent of the real value."""
        if self.real == 0:
            return 0.0 if self.simulated == 0 else float("inf")
        return 100 * (self.simulated / self.real - 1)


def metrics(times: Times) -> dict[str, float]:
    """TTFT, TPOT (requests of one token left out) and latency by mean and percentile, and output tokens a second."""
    several = times.output_len > 1
    steps = times.output_len[several] - 1
    kinds = {
        "ttft_s": times.first_token_s - times.arrival_s,
        "tpot_s": (times.finish_s - times.first_token_s)[several] / steps,
        "e2e_s": times.finish_s - times.arrival_s,
    }
    found = {f"{kind}_{what}": value for kind, values in kinds.items() for what, value in summary(values).items()}
    busy_s = float(times.finish_s.max() - times.arrival_s.min())
    return {**found, "tokens_per_s": float(times.output_len.sum()) / busy_s}


def summary(values: Seconds) -> dict[str, float]:
    """Mean and percentiles; of nothing, nothing."""
    if not len(values):
        return {}
    return {"mean": float(values.mean()), **{f"p{p}": float(np.percentile(values, p)) for p in CENTILES}}


def compare(log: str, real: dict[str, float], simulated: dict[str, float]) -> list[Compared]:
    """One row for each metric that both have."""
    return [Compared(log, name, real[name], simulated[name]) for name in real if name in simulated]
