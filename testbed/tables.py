"""A run as tables: its sessions, and its summary as one row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testbed.description import RUN

if TYPE_CHECKING:
    import pandas as pd

LEFT_OUT = ("cost_profile",)  # not in a summary's row: a nested description without numbers


def sessions(table: "pd.DataFrame", session: Any) -> "pd.DataFrame":
    """One row per session that had a request answered; table: of requests; session: the session of each request id."""
    table = table.assign(session=session[table["request_id"]], ttft_s=table["first_token_s"] - table["arrival_s"])
    return table.groupby("session", as_index=False).agg(
        requests=("request_id", "size"), output_tokens=("output_len", "sum"), start_s=("arrival_s", "min"),
        end_s=("finish_s", "max"), ttft_s_mean=("ttft_s", "mean"),
    )  # fmt: skip


def flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary as one row; nested keys are joined by an underscore, keys of the run keep their names."""
    return {**summary[RUN], **dict(_joined("", {k: v for k, v in summary.items() if k not in (RUN, *LEFT_OUT)}))}


def merge_axes(axes: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, renamed where an axis has the same name: `policy` is the option, policy_in_full all its parameters."""
    return {f"{key}_in_full" if key in axes else key: value for key, value in row.items()}


def _joined(before: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    row: list[tuple[str, Any]] = []
    for key, value in values.items():
        row += _joined(f"{before}{key}_", value) if isinstance(value, Mapping) else [(f"{before}{key}", value)]
    return row
