"""`testbed arena`: policies of any kind on fixed workloads, beside bounds, with intervals."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli import exit_codes
from testbed.experiments.cli.parameters import AtLeastOne

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.experiments.arena.games import Games, Launch

Entrants = Annotated[
    str,
    Parameter(
        metavar="ENTRANT",
        help="a name of `testbed list eviction`, policy, scheduler, router, store or load "
        "(GROUP=NAME if several have it), MODULE:CLASS, or FILE.py:CLASS, with parameters as in "
        "lru_k,k=3; none: every eviction order that ships, and five memory policies",
    ),
]
SuiteName = Annotated[str, Parameter(metavar="NAME", help="quick, full or sprint")]
RulesName = Annotated[
    str,
    Parameter(
        metavar="SYSTEM",
        help="whose scheduling: names of `testbed list system`; several, as in vllm-v1,sglang, are "
        "compared in one more table",
    ),
]
TraceFile = Annotated[Path | None, Parameter(metavar="FILE", help="a trace to add as a workload")]
Out = Annotated[Path, Parameter(metavar="DIR", help="arena.json, arena.csv and arena.html")]
Runs = Annotated[Path, Parameter(metavar="DIR", help="rows that are done, which are not repeated")]
Jobs = Annotated[AtLeastOne, Parameter(help="cells at once, in threads that wait for processes")]
Verify = Annotated[
    Path | None,
    Parameter(
        metavar="FILE",
        help="play a result again, and say where it differs from what comes out: a file, or a name "
        "of one that comes with the package (vllm-v1.json.gz)",
    ),
]
AnyVersion = Annotated[
    bool,
    Parameter(help="with --verify: compare the rows of another version too", negative=()),
]
Sample = Annotated[AtLeastOne | None, Parameter(help="with --verify: so many rows, drawn")]


@Parameter(name="*")
@dataclass(frozen=True)
class Repeated:
    """A result that is played again, in place of new games."""

    verify: Verify = None
    sample: Sample = None
    any_version: AnyVersion = False

    def check(self) -> None:
        """Raise InputError for an option of a result without one."""
        if self.verify is None and (self.sample is not None or self.any_version):
            raise InputError(
                key="--any-version" if self.any_version else "--sample",
                problem="belongs to --verify FILE",
                remedy="leave it out",
            )


NEW_GAMES = Repeated()


def arena(
    *entrants: Entrants,
    suite: SuiteName = "quick",
    rules: RulesName = "vllm-v1",
    mooncake: TraceFile = None,
    agents: TraceFile = None,
    out: Out = Path("arena"),
    runs: Runs = Path("runs/arena"),
    jobs: Jobs = 2,
    repeated: Repeated = NEW_GAMES,
) -> int:
    """Compare policies of any kind on fixed workloads, beside bounds.

    The bounds: no cache, random victims, LRU, Belady, and a pool that evicts nothing. A plug-in is
    checked against its contract first; each cell runs in a process of its own with limits of time
    and memory. A call that was stopped goes on where it was: rows that are done are read. Exit code
    1 if no entrant has a row.
    """
    from testbed.experiments.arena.suites import suite_of

    traces = _text(mooncake), _text(agents)
    chosen = suite_of(suite, *traces)
    launch = _in_threads(jobs)
    repeated.check()
    if repeated.verify is not None:
        return _verify(repeated, repeated.verify, runs, launch, traces)
    from testbed.experiments.arena.entrants import shipped
    from testbed.experiments.arena.games import play
    from testbed.experiments.arena.rules import Rules

    names, systems = entrants or shipped(), list(dict.fromkeys(rules.split(",")))
    games: dict[str, Games] = {}
    for name in systems:
        games[name] = play(names, chosen, Rules(name), runs, launch)
        _write(games[name], out / name if len(systems) > 1 else out, len(chosen.seeds))
    if len(systems) > 1:
        _write_across(games, out)
    is_empty = any(set(names) <= set(of_rules.out) for of_rules in games.values())
    return exit_codes.NO if is_empty else exit_codes.ANSWERED


def _write(games: "Games", out: Path, num_seeds: int) -> None:
    """Print the table, and write the result, its cells and the page."""
    from testbed.experiments.arena.arena_table import (
        HEAD,
        cells_of,
        lines_of,
        page_of,
        ranked,
    )
    from testbed.experiments.arena.results import columns_of, write
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.runs.whole_files import write_cells, write_text

    rows = ranked(games)
    out.mkdir(parents=True, exist_ok=True)
    write(out / "arena.json", games)
    write_cells(out / "arena.csv", columns_of(games))
    write_text(out / "arena.html", page_of(games, rows, num_seeds))
    show(*lines_of(games, num_seeds), plain_table(HEAD, cells_of(rows)))
    show(f"every cell: {out / 'arena.csv'}; page: {out / 'arena.html'}")


def _write_across(games: "Mapping[str, Games]", out: Path) -> None:
    """Print and write the table of all rules, and whether the rank changes."""
    from testbed.experiments.arena.across_rules import across
    from testbed.experiments.arena.arena_table import cells_across, head_across, page_across
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.runs.whole_files import write_cells, write_text

    found = across(games)
    head, rows = head_across(found), cells_across(found)
    columns = dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
    write_cells(out / "rules.csv", columns)
    write_text(out / "rules.html", page_across(found))
    show(plain_table(head, rows), found.sentence, f"page: {out / 'rules.html'}")


def _verify(
    repeated: Repeated,
    file: Path,
    runs: Path,
    launch: "Launch",
    traces: tuple[str | None, str | None],
) -> int:
    """Print what differs, or that nothing does; the exit code."""
    from tempfile import TemporaryDirectory

    from testbed.experiments.arena.results import differences, drawn, located, of_versions, read
    from testbed.experiments.arena.suites import suite_of

    content, sample = read(located(file)), repeated.sample
    suite = suite_of(str(content["about"].get("suite")), *traces)
    with TemporaryDirectory(dir=runs.parent if runs.parent.is_dir() else None) as fresh:
        lines = differences(
            content, suite, Path(fresh), launch, sample, any_version=repeated.any_version
        )
    for line in lines:
        print(line)
    if lines:
        return exit_codes.NO
    num_rows, num_drawn = len(content["rows"]), len(drawn(content["rows"], sample))
    rows = "every row" if num_drawn == num_rows else f"{num_drawn} of {num_rows} rows, drawn,"
    others = " (of another version)" if of_versions(content["about"]) else ""
    print(f"{file}{others}: {rows} came out again")
    return exit_codes.ANSWERED


def _in_threads(jobs: int) -> "Launch":
    """Calls in threads of this process, `jobs` at once."""
    from joblib import Parallel, delayed

    return lambda calls: list(Parallel(jobs, prefer="threads")(delayed(call)() for call in calls))


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise InputError(key=path, problem="there is no such file")
    return str(path.resolve())
