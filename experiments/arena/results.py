"""A result of the arena as a file."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from testbed.experiments.arena.arena_cell import Row
from testbed.experiments.arena.games import Games
from testbed.experiments.runs.whole_files import write_json

OF_ROW = ("entrant", "condition", "seed")
COLUMNS = [field.name for field in fields(Row)]


def write(path: Path, games: Games) -> None:
    """Write the games with all that they rest on."""
    entrants = {
        name: {"kind": entrant.kind, "words": list(entrant.words), "source": entrant.source}
        for name, entrant in games.entrants.items()
    }
    content = {"about": dict(games.about), "entrants": entrants, "out": dict(games.out)}
    write_json(path, {**content, "rows": rows_of(games)})


def rows_of(games: Games) -> list[dict[str, Any]]:
    """Every cell of every entrant."""
    return [
        {"entrant": name, "condition": condition, "seed": seed, **asdict(row)}
        for name, cells in games.rows.items()
        for (condition, seed), row in cells.items()
    ]


def columns_of(games: Games) -> Mapping[str, list[object]]:
    """`rows_of` as columns of a CSV."""
    rows = rows_of(games)
    return {name: [row[name] for row in rows] for name in (*OF_ROW, *COLUMNS)}
