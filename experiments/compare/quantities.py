"""The numbers by which runs are compared: latencies from the requests themselves, the rest from the summary."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.compare.finished_run import FinishedRun

PERCENTILES = (50, 90, 95, 99)
LATENCIES = {
    "normalized latency": ("s/token", "normalized_latency_s_per_token"),
    "TTFT": ("s", "ttft_s"),
    "TPOT": ("s/token", "tpot_s"),
    "end-to-end latency": ("s", "e2e_s"),
}
MEMORY = {"token states": "token_states", "reserved": "reserved", "internal fragmentation": "internal",
          "external and free": "external"}  # fmt: skip
AVERAGES = {"per iteration": "per_iteration", "over time": "over_time"}
SHARE, COUNT = "% of the pool", "count"


class Quantity(NamedTuple):
    """One number of one run. None: the run does not have it, or there was nothing to average."""

    group: str
    name: str
    unit: str
    value: float | None

    @property
    def is_share(self) -> bool:
        """Whether two of them differ in points rather than in percent."""
        return self.unit.startswith("%")


def quantities(run: FinishedRun) -> Iterator[Quantity]:
    """All numbers of a run, the same ones in the same order for every run."""
    yield from _work_done(run.summary)
    for name, (unit, key) in LATENCIES.items():
        values = None if run.requests is None else latencies(run.requests)[key]
        for what, value in _spread(values, run.summary.get(key)).items():
            yield Quantity(name, what, unit, value)
    share = at(run.summary, "slo", "share_inside")
    yield Quantity("service level", "requests inside", "% of requests", None if share is None else 100 * share)
    yield Quantity("service level", "goodput", "1/s", at(run.summary, "slo", "goodput_requests_per_s"))
    yield from _batch(run)
    yield from _memory(run.summary)
    for kind in ("swap", "recompute"):
        yield Quantity("preemptions", kind, COUNT, at(run.summary, "preemptions", kind))
    found, asked = (at(run.summary, "counters", name) for name in ("hit_tokens", "tokens"))
    yield Quantity("prefix cache", "tokens found", "tokens", found)
    share = None if found is None or not asked else 100 * found / asked
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


def _work_done(summary: Mapping[str, Any]) -> Iterator[Quantity]:
    for name in ("arrived", "finished", "rejected"):
        yield Quantity("requests", name, COUNT, at(summary, "requests", name))
    yield Quantity("requests", "time", "s", at(summary, "simulated_s"))
    yield Quantity("requests", "iterations", COUNT, at(summary, "iterations"))
    yield Quantity("throughput", "requests", "1/s", at(summary, "throughput", "requests_per_s"))
    yield Quantity("throughput", "output tokens", "1/s", at(summary, "throughput", "output_tokens_per_s"))


def _spread(values: pd.Series | None, written: Mapping[str, float | None] | None) -> dict[str, float | None]:
    """Mean and percentiles: of the requests where there are any, else as the summary has them."""
    names = ["mean", *(f"p{percent}" for percent in PERCENTILES)]
    if values is None:
        return {name: at(written or {}, name) for name in names}
    if values.empty:
        return dict.fromkeys(names)
    return dict(zip(names, map(float, [values.mean(), *np.percentile(values, PERCENTILES)]), strict=True))


def _batch(run: FinishedRun) -> Iterator[Quantity]:
    for name, key in AVERAGES.items():
        yield Quantity("batched requests", f"mean {name}", "requests", at(run.summary, "batch", f"mean_{key}"))
    largest = None if run.spans is None or run.spans.empty else float(run.spans["running"].max())
    yield Quantity("batched requests", "largest", "requests", largest)


def _memory(summary: Mapping[str, Any]) -> Iterator[Quantity]:
    """Section 3.1's split, what of the rest could be used, and what sharing saves."""
    for name, key in AVERAGES.items():
        group = f"memory {name}"
        for kind, part in MEMORY.items():
            yield Quantity(group, kind, SHARE, _percent(summary, "memory", part, key))
        for kind in ("cached", "largest_free", "free"):
            yield Quantity(group, kind.replace("_", " "), SHARE, _percent(summary, "memory_free", kind, key))
        yield Quantity(group, "saved by sharing", "% of what would be held", _percent(summary, "memory_saving", key))


def _percent(summary: Mapping[str, Any], *keys: str) -> float | None:
    share = at(summary, *keys)
    return None if share is None else 100 * share
