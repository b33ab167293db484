"""A sweep as a table, with axes before results."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from testbed.experiments.runs.summary_table import costs_of, number, percent
from testbed.experiments.runs.whole_files import write_cells
from testbed.tables import flat, merge_axes

SHARES = ("token states", "in SLO")
HEADLINES = {  # the most important first
    "throughput_requests_per_s": "req/s",
    "slo_share_inside": "in SLO",
    "slo_goodput_requests_per_s": "goodput",
    "ttft_s_p99": "TTFT p99 s",
    "tpot_s_p99": "TPOT p99 s",
    "normalized_latency_s_per_token_mean": "latency s/token",
    "preempted": "preempted",
    "batch_mean_per_iteration": "batch",
    "memory_token_states_per_iteration": "token states",
    "ttft_s_mean": "TTFT s",
    "tpot_s_mean": "TPOT s",
    "requests_finished": "finished",
}


class Point(NamedTuple):
    """One point of a sweep: its overrides, its summary and the name of its folder."""

    chosen: Mapping[str, str]
    summary: Mapping[str, Any]
    folder: str


def chosen(overrides: Sequence[str]) -> dict[str, str]:
    """Overrides by key."""
    return {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in overrides)}


def axes(points: Sequence[Point]) -> list[str]:
    """The keys whose values differ between points, in the order of the command line."""
    keys = dict.fromkeys(key for point in points for key in point.chosen)
    return [key for key in keys if len({point.chosen.get(key) for point in points}) > 1]


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """A row per point: axes, folder, description of the run, every number of its summary."""
    names = axes(points)
    table = [
        {
            **{name: point.chosen.get(name) for name in names},
            "folder": point.folder,
            **merge_axes(names, flat(point.summary)),
        }
        for point in points
    ]
    columns = dict.fromkeys(key for row in table for key in row)
    return [{name: row.get(name) for name in columns} for row in table]


def write_sweep(path: Path, points: Sequence[Point]) -> None:
    """The rows as CSV."""
    table = rows(points)
    write_cells(path, {name: [row[name] for row in table] for name in table[0]})


def shown(points: Sequence[Point], width: int) -> Group:
    """Where the costs come from, the axes and as many headlines as fit `width` characters."""
    names = axes(points)
    costs = list(dict.fromkeys(costs_of(point.summary) for point in points))
    head = [f"Sweep: {len(points)} points", *(f"costs: {text}" for text in costs if text)]
    found = [headlines(flat(point.summary)) for point in points]
    columns = {name: [str(point.chosen.get(name, "")) for point in points] for name in names}
    left = width - 1
    for name, cells in [*columns.items(), *_cells(found)]:
        left -= max(map(len, [name, *cells])) + 3
        if left >= 0:
            columns[name] = cells
    table = Table(title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in names else "right", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return Group(*map(Text, head), table)


def _cells(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """The known headlines of all points as text."""
    for title in HEADLINES.values():
        values = [row[title] for row in found]
        if any(value is not None for value in values):
            yield title, [percent(value) if title in SHARES else number(value) for value in values]


def headlines(row: Mapping[str, Any]) -> dict[str, Any]:
    """The few numbers of a row that fit a terminal."""
    preempted = row["preemptions_swap"] + row["preemptions_recompute"]
    return {title: preempted if key == "preempted" else row[key] for key, title in HEADLINES.items()}
