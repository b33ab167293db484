"""A result of the arena as a file, and whether a file is what its versions give."""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from random import Random
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.arena.bench import CellJob, Games, Launch, admit, code, measure
from testbed.experiments.arena.bounds import BOUNDS
from testbed.experiments.arena.cells import Row
from testbed.experiments.arena.entrants import Entrant
from testbed.experiments.arena.isolated import Failure
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.suites import Suite
from testbed.experiments.runs.whole_files import write_json

MEASURED = ("cpu_us",)  # times of this machine, which no other run repeats
COLUMNS = [field.name for field in fields(Row)]
KEPT = Path(__file__).with_name("kept")  # results that come with the package


def write(path: Path, games: Games) -> None:
    """Write everything that a verification reads."""
    rows = [
        {"entrant": name, "condition": condition, "seed": seed, **asdict(row)}
        for name, cells in games.rows.items()
        for (condition, seed), row in cells.items()
    ]
    entrants = {
        name: {"kind": entrant.kind, "words": list(entrant.words), "source": entrant.source}
        for name, entrant in games.entrants.items()
    }
    content = {"about": dict(games.about), "entrants": entrants, "out": dict(games.out)}
    write_json(path, {**content, "rows": rows})


def located(path: Path) -> Path:
    """The file, or else the kept result of this name."""
    kept = KEPT / path
    return kept if not path.exists() and kept.is_file() else path


def read(path: Path) -> dict[str, Any]:
    """The content of a result, compressed if its name ends in .gz. Raises InputError for a file
    that is none.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        content: dict[str, Any] = json.loads(text)
        named = {"about", "entrants", "rows"} <= content.keys()
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
    rows; of these all, or so many that a fixed seed draws. any_version: rows and suite alone count.
    """
    about, rules = content["about"], Rules(str(content["about"].get("rules")))
    found = _of_values(about, {"suite_hash": suite.identity})
    found += [] if any_version else of_versions(about)
    names = [name for name in content["entrants"] if name not in {b.name for b in BOUNDS}]
    entrants, out = admit(names, rules)
    found += [f"{name}: {reason}" for name, reason in out.items() if name not in content["out"]]
    playing = {entrant.name: entrant for entrant in (*BOUNDS, *entrants)}
    found += _of_entrants(content["entrants"], playing)
    return found or _of_rows(content["rows"], playing, suite, rules, folder, launch, sample)


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


def _of_rows(
    rows: Sequence[Mapping[str, Any]],
    playing: Mapping[str, Entrant],
    suite: Suite,
    rules: Rules,
    folder: Path,
    launch: Launch,
    sample: int | None,
) -> list[str]:
    conditions = {condition.name: condition for condition in measure(suite, rules)}
    expected = {
        (name, place, seed) for name in playing for place in conditions for seed in suite.seeds
    }
    keys = [(row["entrant"], row["condition"], row["seed"]) for row in rows]
    strange = [key for key in keys if key not in expected]
    if strange or len(set(keys)) < len(keys):
        return [f"rows: {strange[0] if strange else 'one is there twice'} is not of the suite"]
    drawn = rows if sample is None else Random(0).sample(list(rows), min(sample, len(rows)))
    jobs = [
        CellJob(folder, conditions[row["condition"]], playing[row["entrant"]], rules, row["seed"])
        for row in drawn
    ]
    return [
        line for row, again in zip(drawn, launch(jobs), strict=True) for line in _of_row(row, again)
    ]


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
