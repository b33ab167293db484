"""The compared numbers of runs: latencies from the table of requests, the others from the summary."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from testbed.experiments.compare.finished_run import FinishedRun

PERCENTILES = (50, 90, 95, 99)
LATENCIES = {
    "normalized latency": ("s/token", "normalized_latency_s_per_token"),
    "TTFT": ("s", "ttft_s"),
    "TPOT": ("s/token", "tpot_s"),
    "end-to-end latency": ("s", "e2e_s"),
}
AVERAGES = {"per iteration": "per_iteration", "over time": "over_time"}
SHARE, COUNT = "% of the pool", "count"
# Group, name, unit, and path of keys in summary.json, where percentages are shares of 1.
DONE = (
    ("requests", "arrived", COUNT, "requests", "arrived"),
    ("requests", "finished", COUNT, "requests", "finished"),
    ("requests", "rejected", COUNT, "requests", "rejected"),
    ("requests", "time", "s", "simulated_s"),
    ("requests", "iterations", COUNT, "iterations"),
    ("throughput", "requests", "1/s", "throughput", "requests_per_s"),
    ("throughput", "output tokens", "1/s", "throughput", "output_tokens_per_s"),
)
SERVED = (
    ("service level", "requests inside", "% of requests", "slo", "share_inside"),
    ("service level", "goodput", "1/s", "slo", "goodput_requests_per_s"),
    ("batched requests", "mean per iteration", "requests", "batch", "mean_per_iteration"),
    ("batched requests", "mean over time", "requests", "batch", "mean_over_time"),
)
POOL = (  # section 3.1's shares, the usable part of the rest, and the memory that sharing saves
    ("token states", SHARE, "memory", "token_states"),
    ("reserved", SHARE, "memory", "reserved"),
    ("internal fragmentation", SHARE, "memory", "internal"),
    ("external and free", SHARE, "memory", "external"),
    ("cached", SHARE, "memory_free", "cached"),
    ("largest free", SHARE, "memory_free", "largest_free"),
    ("free", SHARE, "memory_free", "free"),
    ("saved by sharing", "% of what would be used", "memory_saving"),
)
HELD = (
    *((f"memory {name}", *row, key) for name, key in AVERAGES.items() for row in POOL),
    ("preemptions", "swap", COUNT, "preemptions", "swap"),
    ("preemptions", "recompute", COUNT, "preemptions", "recompute"),
    ("prefix cache", "tokens found", "tokens", "counters", "hit_tokens"),
)


class Quantity(NamedTuple):
    """One number of one run. None: the run lacks it, or there was nothing to average."""

    group: str
    name: str
    unit: str
    value: float | None

    @property
    def is_share(self) -> bool:
        """Whether differences are in points rather than in percent."""
        return self.unit.startswith("%")


def quantities(run: FinishedRun) -> Iterator[Quantity]:
    """All numbers of a run, in the same order for every run."""
    yield from (_of_summary(run, *row) for row in DONE)
    for name, (unit, key) in LATENCIES.items():
        values = None if run.requests is None else latencies(run.requests)[key]
        for what, value in _spread(values, run.summary.get(key)).items():
            yield Quantity(name, what, unit, value)
    yield from (_of_summary(run, *row) for row in SERVED)
    largest = None if run.spans is None or run.spans.empty else float(run.spans["running"].max())
    yield Quantity("batched requests", "largest", "requests", largest)
    yield from (_of_summary(run, *row) for row in HELD)
    found, requested = (at(run.summary, "counters", name) for name in ("hit_tokens", "tokens"))
    share = None if found is None or not requested else 100 * found / requested
    yield Quantity("prefix cache", "tokens found, of the prompts'", "% of tokens", share)


def latencies(requests: pd.DataFrame) -> dict[str, pd.Series]:
    """Seconds of every served request, as in summary.json, and from arrival to end; TPOT of longer outputs only."""
    served = requests[requests["finish_s"].notna()]
    whole, decoding = served["finish_s"] - served["arrival_s"], served["finish_s"] - served["first_token_s"]
    longer = served["output_len"] > 1
    return {
        "normalized_latency_s_per_token": whole / served["output_len"],
        "ttft_s": served["first_token_s"] - served["arrival_s"],
        "tpot_s": decoding[longer] / (served.loc[longer, "output_len"] - 1),
        "e2e_s": whole,
    }


def at(summary: Mapping[str, Any], *keys: str) -> float | None:
    """A number of a summary by its path of keys."""
    value: Any = summary
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _of_summary(run: FinishedRun, group: str, name: str, unit: str, *keys: str) -> Quantity:
    value = at(run.summary, *keys)
    return Quantity(group, name, unit, 100 * value if value is not None and unit.startswith("%") else value)


def _spread(values: pd.Series | None, written: Mapping[str, float | None] | None) -> dict[str, float | None]:
    """Mean and percentiles of the requests where there are any, else those of the summary."""
    names = ["mean", *(f"p{percent}" for percent in PERCENTILES)]
    if values is None:
        return {name: at(written or {}, name) for name in names}
    if values.empty:
        return dict.fromkeys(names)
    return dict(zip(names, map(float, [values.mean(), *np.percentile(values, PERCENTILES)]), strict=True))
