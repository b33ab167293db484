"""The metrics of a sweep that a figure draws."""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.runs.quantities import Quantity, quantities

# By the column of a sweep's table: label, and the option of its limit
PANELS = {
    "normalized_latency_s_per_token_mean": ("Norm. latency (s/token)", ""),
    "ttft_s_p99": ("TTFT p99 (s)", "slo_ttft_s"),
    "tpot_s_p99": ("TPOT p99 (s)", "slo_tpot_s"),
    "slo_goodput_requests_per_s": ("Goodput (req/s)", ""),
    "batch_mean_per_iteration": ("Batched requests", ""),
}
OBJECTIVES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


def panels_of(metrics: Sequence[str]) -> Mapping[str, tuple[str, str]]:
    """The label and the option of the limit of these columns; PANELS without any.

    Raises InputError for a metric that no summary has.
    """
    shares_last = sorted(quantities(), key=lambda quantity: quantity.is_share)
    known = {column_of(quantity.keys): quantity for quantity in shares_last}
    panels = {}
    for metric in metrics:
        column = column_of(metric)
        if column not in known and column not in PANELS:
            near = did_you_mean(column, [*PANELS, *known])
            raise InputError(
                key="metrics",
                value=metric,
                problem="is no number of a run",
                remedy=f"give columns of sweep.csv, as ttft_s.p99{near}",
            )
        panels[column] = PANELS.get(column) or _panel(known[column])
    return panels or PANELS


def column_of(keys: str) -> str:
    """The column of a sweep's table for a number of a summary, `ttft_s.p99` or `ttft_s_p99`."""
    return keys.strip().replace(".", "_")


def with_shares(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a sweep's table in which shares are percentages, as their labels say."""
    shares = dict[str, Any]()
    for quantity in quantities():
        value = row.get(column_of(quantity.keys))
        if quantity.is_share and value is not None:
            whole = row.get(column_of(quantity.whole)) if quantity.whole else 1
            shares[column_of(quantity.keys)] = 100 * value / whole if whole else None
    return {**row, **shares}


def _panel(quantity: Quantity) -> tuple[str, str]:
    objective = next((name for name in OBJECTIVES if quantity.keys.startswith(f"{name}.p")), "")
    label = f"{quantity.group} {quantity.name} ({quantity.unit})"
    return label, f"slo_{objective}" if objective else ""
