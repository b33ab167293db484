"""`testbed arena`: policies of any kind on fixed workloads, beside bounds, with intervals."""

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


def arena(
    *entrants: Entrants,
    suite: SuiteName = "quick",
    rules: RulesName = "vllm-v1",
    mooncake: TraceFile = None,
    agents: TraceFile = None,
    out: Out = Path("arena"),
    runs: Runs = Path("runs/arena"),
    jobs: Jobs = 2,
) -> int:
    """Compare policies of any kind on fixed workloads, beside bounds.

    The bounds: no cache, random victims, LRU, Belady, and a pool that evicts nothing. A plug-in is
    checked against its contract first; each cell runs in a process of its own with limits of time
    and memory. A call that was stopped goes on where it was: rows that are done are read. Exit code
    1 if no entrant has a row.
    """
    from testbed.experiments.arena.entrants import shipped
    from testbed.experiments.arena.games import play
    from testbed.experiments.arena.rules import Rules
    from testbed.experiments.arena.suites import suite_of

    chosen = suite_of(suite, _text(mooncake), _text(agents))
    launch = _in_threads(jobs)
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
