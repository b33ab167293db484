"""A summary as one row of a table: what the run was, then every number under a name that says its unit."""

from collections.abc import Mapping
from typing import Any

from experiments.runs.description import RUN

LEFT_OUT = ("cost_profile",)
HEADLINES = {
    "requests_finished": "finished",
    "throughput_requests_per_s": "req/s",
    "normalized_latency_s_per_token_mean": "latency s/token",
    "ttft_s_mean": "TTFT s",
    "ttft_s_p95": "TTFT p95 s",
    "tpot_s_mean": "TPOT s",
    "batch_mean_per_iteration": "batch",
    "memory_token_states_per_iteration": "token states",
    "preempted": "preempted",
    "slo_share_inside": "in SLO",
}


def flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The row; nested keys are joined by an underscore, those of the run itself stand by their own names."""
    return {**summary[RUN], **dict(_joined("", {k: v for k, v in summary.items() if k not in (RUN, *LEFT_OUT)}))}


def _joined(before: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    row: list[tuple[str, Any]] = []
    for key, value in values.items():
        row += _joined(f"{before}{key}_", value) if isinstance(value, Mapping) else [(f"{before}{key}", value)]
    return row


def headlines(row: Mapping[str, Any]) -> dict[str, Any]:
    """The few numbers of a row that a terminal has room for."""
    preempted = row["preemptions_swap"] + row["preemptions_recompute"]
    return {title: preempted if key == "preempted" else row[key] for key, title in HEADLINES.items()}
