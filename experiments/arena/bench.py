"""The games of the arena: every entrant and bound on every workload, pool, load and seed, each in a
process of its own; what is done already is read.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testbed.checks.checking import check
from testbed.core.errors import InputError
from testbed.experiments.arena.bounds import BOUNDS, LRU
from testbed.experiments.arena.cells import Condition, Row, conditions_of, row_of
from testbed.experiments.arena.entrants import Entrant, entrant_of
from testbed.experiments.arena.isolated import Failure, isolated
from testbed.experiments.arena.standings import Cells
from testbed.experiments.arena.suites import Suite
from testbed.experiments.runs.whole_files import write_json
from testbed.memory.protocols import ForeseesChains
from testbed.run.identity import code_hash, folder_hash
from testbed.run.oracles import is_oracle
from testbed.run.parts import locate
from testbed.version import release

CELL_S, CHECK_S, MEASURE_S = 60.0, 120.0, 300.0  # limits of one call
EXAMPLES = 50  # histories of the contract's check
Launch = Callable[[Sequence[Callable[[], Any]]], list[Any]]


@dataclass(frozen=True)
class Rules:
    """Under which the entrants play: a system's, by name, and its overrides."""

    name: str

    @property
    def words(self) -> tuple[str, ...]:
        return (f"+system={self.name}",)


@dataclass(frozen=True)
class Games:
    """The games that were played.

    about: suite, rules and versions, by which a result is verified. rows: of each entrant and bound
    that has all of them, by condition and seed. out: why others have not, by name.
    """

    about: Mapping[str, str]
    entrants: Mapping[str, Entrant]
    rows: Mapping[str, Cells]
    out: Mapping[str, str]


@dataclass(frozen=True)
class CellJob:
    """One cell, for a launcher. It reads the row if the folder has it, and keeps it there."""

    folder: Path
    condition: Condition
    entrant: Entrant
    rules: Rules
    seed: int

    def __call__(self) -> Row | Failure:
        path = self.folder / f"{self._key()}.json"
        if path.is_file():
            return Row(**json.loads(path.read_text()))
        row = isolated(
            row_in, self.condition, self.entrant, self.rules.words, self.seed, limit_s=CELL_S
        )
        if isinstance(row, Row):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, asdict(row))
        return row  # type: ignore[no-any-return]

    def _key(self) -> str:
        values = [self.condition, asdict(self.entrant), self.rules.name, self.seed, code()]
        return digest(json.dumps(values, default=asdict))


def row_in(condition: Condition, entrant: Entrant, rules: Sequence[str], seed: int) -> Row:
    """The row of a cell, with the entrant's folder on the import path."""
    _find(entrant)
    return row_of(condition, entrant, rules, seed)


def admitted(text: str) -> Entrant | Failure:
    """The entrant that a text names, if it keeps the contract of its kind."""
    entrant = entrant_of(text)
    _find(entrant)
    if entrant.target is None:
        return entrant
    if reads_future(locate(entrant.target.replace(":", "."), "entrant")):
        return Failure("reads the future, as bounds may (take it out of the constructor)")
    broken = check(entrant.target, num_examples=EXAMPLES)
    return entrant if broken is None else Failure(f"breaks the contract: {broken}")


def reads_future(kind: Any) -> bool:
    """True if objects of a class get true output lengths, or the prompts to come."""
    return is_oracle(kind) or issubclass(kind, ForeseesChains)


def _find(entrant: Entrant) -> None:
    if entrant.folder:
        sys.path.insert(0, entrant.folder)


@cache
def code() -> dict[str, str]:
    """The versions that decide a row."""
    return {
        "testbed": release() or "unknown",
        "simulator": code_hash(),
        "arena": folder_hash(Path(__file__).parent),
    }


def digest(text: str) -> str:
    """Sixteen hexadecimal digits of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def play(names: Sequence[str], suite: Suite, rules: Rules, folder: Path, launch: Launch) -> Games:
    """All games of the named entrants and of the bounds. Raises InputError if a bound fails."""
    entrants, out = admit(names)
    conditions = measure(suite, rules)
    playing = {entrant.name: entrant for entrant in (*BOUNDS, *entrants)}
    keys = [
        (name, condition, seed)
        for name in playing
        for condition in conditions
        for seed in suite.seeds
    ]
    jobs = [CellJob(folder, at, playing[name], rules, seed) for name, at, seed in keys]
    rows: dict[str, dict[tuple[str, int], Row]] = {name: {} for name in playing}
    for (name, condition, seed), row in zip(keys, launch(jobs), strict=True):
        place = f"{condition.name}, seed {seed}"
        if isinstance(row, Failure):
            out.setdefault(name, f"{place}: {row.reason}")
        else:
            rows[name][condition.name, seed] = row
    _check_bounds(out)
    out |= rejecting({name: rows[name] for name in rows if name not in out})
    about = {"suite": suite.name, "suite_hash": suite.identity, "rules": rules.name, **code()}
    kept = {name: cells for name, cells in rows.items() if name not in out}
    return Games(about, playing, kept, out)


def admit(names: Sequence[str]) -> tuple[list[Entrant], dict[str, str]]:
    """The entrants that keep their contract, and why the others do not play, by name."""
    entrants, out = list[Entrant](), dict[str, str]()
    bounds = {bound.name for bound in BOUNDS}
    for name in dict.fromkeys(names):
        if name in bounds:
            continue
        answer = isolated(admitted, name, limit_s=CHECK_S)
        if isinstance(answer, Failure):
            out[name] = answer.reason
        else:
            entrants.append(answer)
    return entrants, out


def measure(suite: Suite, rules: Rules) -> list[Condition]:
    """The pools and rates of every workload."""
    conditions = list[Condition]()
    for case in suite.cases:
        answer = isolated(conditions_of, suite, case, rules.words, limit_s=MEASURE_S)
        if isinstance(answer, Failure):
            raise InputError(key=f"--suite {suite.name}: {case.name}", problem=answer.reason)
        conditions += answer
    return conditions


def _check_bounds(out: Mapping[str, str]) -> None:
    failed = next((bound.name for bound in BOUNDS if bound.name in out), None)
    if failed is not None:
        raise InputError(
            key="arena", problem=f"{failed}, which stands beside all, failed: {out[failed]}"
        )


def rejecting(rows: Mapping[str, Cells]) -> dict[str, str]:
    """The remark on entrants that reject requests which LRU serves: latencies leave them out."""
    return {
        name: f"{key[0]}, seed {key[1]}: rejects {row.rejected} requests"
        for name, cells in rows.items()
        for key, row in cells.items()
        if row.rejected > rows[LRU][key].rejected
    }
