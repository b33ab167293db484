"""A sweep as a table: its axes first, then what came out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from experiments.runs.flat_summary import flat, headlines
from experiments.runs.run_tables import write_cells
from experiments.runs.summary_table import number, percent

SHARES = ("token states", "in SLO")


class Point(NamedTuple):
    """One point of a sweep: what was chosen for it, its summary and the name of its folder."""

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
    """A row a point: axes, folder, what the run was, every number of its summary."""
    names = axes(points)
    table = [
        {
            **{name: point.chosen.get(name) for name in names},
            "folder": point.folder,
            **beside(names, flat(point.summary)),
        }
        for point in points
    ]
    columns = dict.fromkeys(key for row in table for key in row)
    return [{name: row.get(name) for name in columns} for row in table]


def beside(names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row under names that no axis has: `policy` is what was chosen, policy_in_full all of its parameters."""
    return {f"{key}_in_full" if key in names else key: value for key, value in row.items()}


def write_sweep(path: Path, points: Sequence[Point]) -> None:
    """The rows as CSV."""
    table = rows(points)
    write_cells(path, {name: [row[name] for row in table] for name in table[0]})


def shown(points: Sequence[Point]) -> Table:
    """The axes and the headlines for the terminal."""
    names = axes(points)
    table = Table(title=f"Sweep: {len(points)} points", title_justify="left")
    found = [headlines(flat(point.summary)) for point in points]
    titles = [title for title in found[0] if any(row[title] is not None for row in found)]
    for name in names:
        table.add_column(name)
    for title in titles:
        table.add_column(title, justify="right")
    for point, row in zip(points, found, strict=True):
        cells = [percent(row[title]) if title in SHARES else number(row[title]) for title in titles]
        table.add_row(*(str(point.chosen.get(name, "")) for name in names), *cells)
    return table
