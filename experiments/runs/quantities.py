"""The compared numbers of a run, each with the place where its summary has it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd


class Quantity(NamedTuple):
    """A number of a summary by its keys; `whole`: the keys of the number that it is a share of. Shares are of 1."""

    group: str
    name: str
    unit: str
    keys: Sequence[str]
    whole: Sequence[str] = ()

    @property
    def label(self) -> str:
        """All that a row says of it."""
        return f"{self.group}, {self.name} ({self.unit})"

    @property
    def is_share(self) -> bool:
        """Whether it is in percent, and differences are in points."""
        return self.unit.startswith("%")

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """The number of a run. None: the summary lacks it, or there was nothing to average."""
        value, whole = _at(summary, self.keys), _at(summary, self.whole) if self.whole else 1.0
        if value is None or not whole:
            return None
        return value / whole * (100 if self.is_share else 1)


SHARE, COUNT = "% of the pool", "count"
LATENCIES = {
    "normalized latency": ("s/token", "normalized_latency_s_per_token"),
    "TTFT": ("s", "ttft_s"),
    "TPOT": ("s/token", "tpot_s"),
    "end-to-end latency": ("s", "e2e_s"),
}
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
QUANTITIES = (
    *(Quantity("requests", name, COUNT, ("requests", name)) for name in ("arrived", "finished", "rejected")),
    Quantity("requests", "time", "s", ("simulated_s",)),
    Quantity("requests", "iterations", COUNT, ("iterations",)),
    Quantity("throughput", "requests", "1/s", ("throughput", "requests_per_s")),
    Quantity("throughput", "output tokens", "1/s", ("throughput", "output_tokens_per_s")),
    *(
        Quantity(group, name, unit, (key, name))
        for group, (unit, key) in LATENCIES.items()
        for name in ("mean", "p50", "p90", "p95", "p99")
    ),
    Quantity("service level", "requests inside", "% of requests", ("slo", "share_inside")),
    Quantity("service level", "goodput", "1/s", ("slo", "goodput_requests_per_s")),
    Quantity("batched requests", "mean per iteration", "requests", ("batch", "mean_per_iteration")),
    Quantity("batched requests", "mean over time", "requests", ("batch", "mean_over_time")),
    *(
        Quantity(f"memory {average}", name, unit, (*keys, average.replace(" ", "_")))
        for average in ("per iteration", "over time")
        for name, unit, *keys in POOL
    ),
    Quantity("preemptions", "swap", COUNT, ("preemptions", "swap")),
    Quantity("preemptions", "recompute", COUNT, ("preemptions", "recompute")),
    Quantity("prefix cache", "tokens found", "tokens", ("counters", "hit_tokens")),
    Quantity("prefix cache", "tokens found, of the prompts'", "% of tokens", ("counters", "hit_tokens"),
             ("counters", "tokens")),
)  # fmt: skip
BY_NAME = {(one.group, one.name): one for one in QUANTITIES}
MAIN = {  # what decides between servers, the most important first
    "TTFT p99, s": BY_NAME["TTFT", "p99"],
    "TPOT p99, s": BY_NAME["TPOT", "p99"],
    "goodput, req/s": BY_NAME["service level", "goodput"],
    "in SLO, %": BY_NAME["service level", "requests inside"],
    "swaps": BY_NAME["preemptions", "swap"],
    "recomputes": BY_NAME["preemptions", "recompute"],
    "req/s": BY_NAME["throughput", "requests"],
    "TTFT p50, s": BY_NAME["TTFT", "p50"],
    "TPOT p50, s": BY_NAME["TPOT", "p50"],
    "latency, s/token": BY_NAME["normalized latency", "mean"],
    "batch": BY_NAME["batched requests", "mean per iteration"],
    "token states, %": BY_NAME["memory per iteration", "token states"],
}


def main_numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """The main numbers that a summary has."""
    values = {title: one.value(summary) for title, one in MAIN.items()}
    return {title: value for title, value in values.items() if value is not None}


def _at(summary: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    value: Any = summary
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


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
