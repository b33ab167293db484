"""A result of the arena as a file, and whether a file is what its versions give."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from random import Random
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.arena.arena_bounds import BOUNDS
from testbed.experiments.arena.arena_cell import Row
from testbed.experiments.arena.entrants import Entrant
from testbed.experiments.arena.games import CellJob, Games, Launch, admit, code, measure
from testbed.experiments.arena.isolated import Failure
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.suites import Suite
from testbed.experiments.runs.whole_files import write_json

MEASURED = ("cpu_us",)  # times of this machine, which no other run repeats
OF_ROW = ("entrant", "condition", "seed")
COLUMNS = [field.name for field in fields(Row)]
KEPT = Path(__file__).with_name("kept")  # results that come with the package


def write(path: Path, games: Games) -> None:
    """Write everything that a verification reads."""
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


def located(path: Path) -> Path:
    """The file, or else the kept result of this name."""
    kept = KEPT / path
    return kept if not path.exists() and kept.is_file() else path


def read(path: Path) -> dict[str, Any]:
    """The content of a result, compressed if its name ends in .gz. Raises InputError for any other
    file.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        content: dict[str, Any] = json.loads(text)
        named = _is_result(content)
    except (OSError, EOFError, zlib.error, ValueError, AttributeError) as error:
        raise InputError(key="--verify", value=path, problem=f"cannot be read ({error})") from None
    if not named:
        raise InputError(
            key="--verify",
            value=path,
            problem="is no result of the arena",
            remedy="give its arena.json",
        )
    return content


def _is_result(content: Mapping[str, Any]) -> bool:
    """True if it has the parts of a result, and each row says what it is of."""
    tables = (content.get(name) for name in ("about", "entrants", "out"))
    rows = content.get("rows")
    return (
        all(isinstance(table, dict) for table in tables)
        and isinstance(rows, list)
        and all(isinstance(row, dict) and row.keys() >= set(OF_ROW) for row in rows)
    )


def differences(
    content: Mapping[str, Any],
    suite: Suite,
    folder: Path,
    launch: Launch,
    sample: int | None,
    *,
    any_version: bool = False,
) -> list[str]:
    """Differences between a result and what its entrants give here: versions, suite, entrants, and
    rows; of these all, or a sample drawn by their own content. any_version: rows and suite alone
    count.
    """
    about, rules = content["about"], Rules(str(content["about"].get("rules")))
    faults = _of_values(about, {"suite_hash": suite.identity})
    faults += [] if any_version else of_versions(about)
    names = [name for name in content["entrants"] if name not in {b.name for b in BOUNDS}]
    entrants, out = admit(names, rules)
    faults += [f"{name}: {reason}" for name, reason in out.items() if name not in content["out"]]
    playing = {entrant.name: entrant for entrant in (*BOUNDS, *entrants)}
    faults += _of_entrants(content["entrants"], playing)
    conditions = {condition.name: condition for condition in measure(suite, rules)}
    places = {(place, seed) for place in conditions for seed in suite.seeds}
    faults += _of_keys(content, playing, places)
    if faults:
        return faults
    rows = drawn(content["rows"], sample)
    jobs = [
        CellJob(folder, conditions[row["condition"]], playing[row["entrant"]], rules, row["seed"])
        for row in rows
    ]
    return [
        line for row, again in zip(rows, launch(jobs), strict=True) for line in _of_row(row, again)
    ]


def drawn(rows: Sequence[Mapping[str, Any]], sample: int | None) -> Sequence[Mapping[str, Any]]:
    """So many of the rows, or all. Their own content draws, so that a row that is changed changes
    which rows are run again.
    """
    if sample is None or sample >= len(rows):
        return rows
    return Random(json.dumps(rows, sort_keys=True)).sample(list(rows), sample)


def of_versions(about: Mapping[str, str]) -> list[str]:
    """The versions that wrote a result and are others here."""
    return _of_values(about, code())


def _of_values(about: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    return [
        f"{key}: {about.get(key)} in the file, {value} here"
        for key, value in expected.items()
        if about.get(key) != value
    ]


def _of_entrants(stored: Mapping[str, Any], playing: Mapping[str, Entrant]) -> list[str]:
    return [
        f"{name}: is another one here ({entrant.words}, {entrant.source or 'shipped'})"
        for name, entrant in playing.items()
        if stored.get(name, {}).get("words") != list(entrant.words)
        or stored[name]["source"] != entrant.source
    ]


def _of_keys(
    content: Mapping[str, Any], playing: Mapping[str, Entrant], places: set[tuple[str, int]]
) -> list[str]:
    """Rows that the suite has not, that are there twice, or that are missing: each entrant that is
    not out has all of them, and so have the bounds.
    """
    bounds = {bound.name for bound in BOUNDS}
    has_all = [name for name in playing if name in bounds or name not in content["out"]]
    expected = {(name, *place) for name in has_all for place in places}
    keys = [(row["entrant"], row["condition"], row["seed"]) for row in content["rows"]]
    faults = [f"rows: {key} is not of the suite" for key in keys if key not in expected]
    faults += [f"rows: {key} is there twice" for key, times in Counter(keys).items() if times > 1]
    return faults + [f"rows: {key} is missing" for key in sorted(expected.difference(keys))]


def _of_row(row: Mapping[str, Any], again: Row | Failure) -> list[str]:
    place = f"{row['entrant']}, {row['condition']}, seed {row['seed']}"
    if isinstance(again, Failure):
        return [f"{place}: {again.reason}"]
    values = asdict(again)
    return [
        f"{place}: {column} is {row.get(column)} in the file, {values[column]} here"
        for column in COLUMNS
        if column not in MEASURED and row.get(column) != values[column]
    ]
