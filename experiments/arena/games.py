"""The games of the arena: every entrant and bound on every workload, pool, load and seed, each in a
process of its own; what is done already is read.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from testbed.checks.checking import check
from testbed.checks.contract.clauses import ClauseBroken
from testbed.core.errors import AnswerIsNo, InputError
from testbed.experiments.arena.arena_bounds import BOUNDS, LRU
from testbed.experiments.arena.arena_cell import Condition, Row, conditions_of, row_of
from testbed.experiments.arena.entrants import (
    LOAD,
    POLICY,
    STORE,
    Entrant,
    check_named,
    entrant_of,
    is_class,
    values_of,
)
from testbed.experiments.arena.isolated import Failure, Unanswered, WrongInput, isolated
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.standings import Cells
from testbed.experiments.arena.suites import SERVER, Suite
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.progress import left, status_line
from testbed.experiments.runs.whole_files import write_json
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.run.identity import code_hash, folder_hash
from testbed.run.oracles import future_read
from testbed.run.parts import locate
from testbed.version import release

TIER_METHOD = "tier_slots"  # of policies that use tiers below the device
CELL_S, CHECK_S, MEASURE_S = 60.0, 120.0, 300.0  # limits of one call
FASTER = "a policy is simulated faster if it defines guaranteed_steps and footprint"
EXAMPLES = 50  # histories of the contract's check
Launch = Callable[[Sequence[Callable[[], Any]]], list[Any]]


@dataclass(frozen=True)
class Games:
    """The games that were played.

    about: suite, rules and versions, by which a result is verified. rows: of each entrant and bound
    that has all of them, by condition and seed. out: why others have not, by name. left_out:
    workloads whose requests the rules reject.
    """

    about: Mapping[str, str]
    entrants: Mapping[str, Entrant]
    rows: Mapping[str, Cells]
    out: Mapping[str, str]
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class CellJob:
    """One cell, for a launcher. It reads the row if the folder has it, and keeps it there."""

    folder: Path
    condition: Condition
    entrant: Entrant
    rules: Rules
    seed: int

    def __call__(self) -> Row | Failure:
        if self.path.is_file():
            return Row(**json.loads(self.path.read_text()))
        row = isolated(row_in, self.condition, self.entrant, self.rules, self.seed, limit_s=CELL_S)
        if isinstance(row, Unanswered) and self.entrant.kind == POLICY:
            row = Failure(f"{row.reason}; {FASTER}")
        if isinstance(row, Row):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.path, asdict(row))
        return row  # type: ignore[no-any-return]

    @cached_property
    def path(self) -> Path:
        """The file of its row."""
        values = [self.condition, asdict(self.entrant), self.rules.name, self.seed, code()]
        return self.folder / f"{digest(json.dumps(values, default=asdict))}.json"


def row_in(condition: Condition, entrant: Entrant, rules: Rules, seed: int) -> Row:
    """The row of a cell, with the entrant's folder on the import path."""
    _find(entrant)
    return row_of(condition, entrant, rules, seed)


def admitted(text: str, rules: Rules) -> Entrant | Failure:
    """The entrant that a text names, if it keeps the contract of its kind."""
    entrant = entrant_of(text)
    _find(entrant)
    config = configured([*SERVER, *rules.words, *rules.words_of(entrant)])
    read = future_read(policy=config.policy, scheduler=config.scheduler)
    if read is not None:
        return Failure(f"reads the future, as bounds may ({read})")
    broken = None if entrant.target is None else _broken_clause(entrant, entrant.target)
    if broken is not None:
        return Failure(f"breaks the contract: {broken}")
    return replace(entrant, has_tier=hasattr(config.policy.maker(POLICY), TIER_METHOD))


def _broken_clause(entrant: Entrant, target: str) -> ClauseBroken | None:
    """The first clause that a plug-in breaks; a rule of tiers is checked in a policy that has
    it.
    """
    parameters = values_of(entrant)
    if entrant.kind not in (STORE, LOAD):
        return check(target, num_examples=EXAMPLES, **parameters)
    make = partial(locate(target.replace(":", "."), "entrant"), **parameters)
    return check(lambda pool: TieredCaching(pool, **{entrant.kind: make()}), num_examples=EXAMPLES)


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
    """All games of the named entrants and of the bounds. Raises InputError for a name of no part
    or wrong parameters and if a bound fails, and its AnswerIsNo if no entrant may play, before the
    bounds take minutes.
    """
    entrants, out = admit(names, rules)
    conditions = measure(suite, rules)
    playing = {entrant.name: entrant for entrant in (*BOUNDS, *entrants)}
    keys = list(product(playing, conditions, suite.seeds))
    jobs = [CellJob(folder, at, playing[name], rules, seed) for name, at, seed in keys]
    rows: dict[str, dict[tuple[str, int], Row]] = {name: {} for name in playing}
    _print_status(f"plays {len(jobs):,} cells, a line each ten seconds")
    with status_line(_progress([job.path for job in jobs])):
        answers = launch(jobs)
    for (name, condition, seed), row in zip(keys, answers, strict=True):
        place = f"{condition.name}, seed {seed}"
        if isinstance(row, Failure):
            out.setdefault(name, f"{place}: {row.reason}")
        else:
            rows[name][condition.name, seed] = row
    _check_bounds(out)
    out |= rejecting({name: rows[name] for name in rows if name not in out})
    about = {"suite": suite.name, "suite_hash": suite.identity, "rules": rules.name, **code()}
    kept = {name: cells for name, cells in rows.items() if name not in out}
    return Games(about, playing, kept, out, rules.left_out(suite))


def _progress(paths: Sequence[Path]) -> Callable[[], str]:
    """A function that says how many of these files exist, and when the others will at this pace."""

    def num_there() -> int:
        return sum(path.is_file() for path in paths)

    began, before = time.monotonic(), num_there()

    def text() -> str:
        there = num_there()
        rest = left(there - before, len(paths) - before, time.monotonic() - began)
        return f"arena: {there:,} of {len(paths):,} cells{rest}"

    return text


def admit(names: Sequence[str], rules: Rules) -> tuple[list[Entrant], dict[str, str]]:
    """The entrants that keep their contract, and why the others do not play, by name. Raises the
    error of a part that ships, and of the first entrant if none plays.
    """
    entrants, out = list[Entrant](), dict[str, str]()
    bounds = {bound.name for bound in BOUNDS}
    others = [name for name in dict.fromkeys(names) if name not in bounds]
    for name in others:
        check_named(name)
    errors = list[InputError]()
    for name in others:
        _print_status(f"checks the contract of {name}")
        answer = isolated(admitted, name, rules, limit_s=CHECK_S)
        if isinstance(answer, Failure):
            out[name] = answer.reason
            errors.append(_error_of(name, answer))
            if isinstance(answer, WrongInput) and not is_class(name):
                raise errors[-1]
        else:
            entrants.append(answer)
    if errors and not entrants:
        raise errors[0]
    return entrants, out


def _error_of(name: str, failure: Failure) -> InputError:
    kind = InputError if isinstance(failure, WrongInput) else AnswerIsNo
    return kind(key=name, problem=failure.reason.removeprefix(f"{name}: "))


def measure(suite: Suite, rules: Rules) -> list[Condition]:
    """The pools and rates of every workload that the rules serve."""
    conditions = list[Condition]()
    for case in filter(rules.serves, suite.cases):
        _print_status(f"measures the pools and rates of {case.name}")
        answer = isolated(conditions_of, suite, case, rules, limit_s=MEASURE_S)
        if isinstance(answer, Failure):
            raise InputError(key=f"--suite {suite.name}: {case.name}", problem=answer.reason)
        conditions += answer
    return conditions


def _print_status(text: str) -> None:
    """Print what is done next at once: each takes seconds to minutes."""
    print(f"arena: {text}", file=sys.stderr, flush=True)


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
