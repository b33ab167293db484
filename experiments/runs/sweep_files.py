"""The file of a sweep's table: no sweep overwrites the table of another one."""

import csv
from collections.abc import Collection
from itertools import count
from pathlib import Path

TABLE = "sweep"
RUN_FOLDER = "folder"  # the column with the name of a point's run folder


def table_for(folder: Path, runs: Collection[str]) -> Path:
    """sweep.csv in the folder, or sweep-2.csv, sweep-3.csv and so on: the first that is not there,
    or all of whose runs are among these, so that nothing of it is lost.
    """
    for number in count(1):
        path = folder / (f"{TABLE}.csv" if number == 1 else f"{TABLE}-{number}.csv")
        if not path.exists() or _runs_of(path) <= set(runs):
            return path
    raise AssertionError("a count does not end")


def _runs_of(path: Path) -> set[str]:
    """The runs of a table; of a file that is no such table its own name, which no run has."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {row[RUN_FOLDER] for row in csv.DictReader(file)}
    except (OSError, UnicodeError, KeyError, csv.Error):
        return {path.name}
