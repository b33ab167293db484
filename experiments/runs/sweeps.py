"""A sweep as a table, with axes before results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from testbed.description import flat, merge_axes
from testbed.experiments.runs.quantities import MAIN, main_numbers
from testbed.experiments.runs.summary_table import costs_of, number
from testbed.experiments.runs.whole_files import write_cells


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
    """Where the costs come from, the axes and as many main numbers as fit `width` characters."""
    names = axes(points)
    costs = list(dict.fromkeys(costs_of(point.summary) for point in points))
    head = [f"Sweep: {len(points)} points", *(f"costs: {text}" for text in costs if text)]
    found = [main_numbers(point.summary) for point in points]
    columns = {name: [str(point.chosen.get(name, "")) for point in points] for name in names}
    left = width - 1
    known = [title for title in MAIN if any(title in row for row in found)]
    numbers = {title: [number(row.get(title)) for row in found] for title in known}
    for name, cells in [*columns.items(), *numbers.items()]:
        left -= max(map(len, [name, *cells])) + 3
        if left >= 0:
            columns[name] = cells
    table = Table(title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in names else "right", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return Group(*map(Text, head), table)
