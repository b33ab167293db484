"""`testbed compare`: finished runs next to each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AsJson, AtLeastOne, TrustPlugIns

if TYPE_CHECKING:
    from testbed.experiments.compare.comparison import Comparison
    from testbed.experiments.compare.tables import Blamed

RUNS = Path("runs")

Runs = Annotated[
    str,
    Parameter(
        name="[NAME=]RUN", required=True, help="run folders; changes are from the first of them"
    ),
]
Csv = Annotated[Path | None, Parameter(metavar="OUT", help="write a row per number and run")]
Html = Annotated[
    Path | None, Parameter(metavar="OUT", help="write one page with curves and tables")
]
Drawing = Annotated[
    Path | None, Parameter(metavar="OUT", help="draw the curves of all runs (.png, .pdf or .svg)")
]


def compare(
    *runs: Runs,
    trust_plug_ins: TrustPlugIns = False,
    csv: Csv = None,
    html: Html = None,
    figure: Drawing = None,
    all: Annotated[bool, Parameter(help="also numbers that are the same in all runs")] = False,
    seeds: Annotated[
        AtLeastOne | None,
        Parameter(
            help="also simulate each run with the seeds 0 to N - 1: means with 95% intervals, and "
            "differences on the same seeds"
        ),
    ] = None,
    seeds_in: Annotated[
        Path, Parameter(name="--runs", metavar="DIR", help="folders of the runs of --seeds")
    ] = RUNS,
    json: AsJson = False,
) -> None:
    """Compare finished runs, simulated or on a GPU."""
    from dataclasses import replace

    from testbed.experiments.cli.json_answers import comparison_answer
    from testbed.experiments.cli.output import print_json, show
    from testbed.experiments.compare.comparison import compare
    from testbed.experiments.compare.finished_run import blame, read_runs
    from testbed.experiments.compare.tables import charts, texts
    from testbed.experiments.runs.plots import figure_of, save

    comparison = compare(read_runs(runs, trusts_plug_ins=trust_plug_ins))
    blamed, remarks = blame(comparison.runs)
    comparison = replace(comparison, remarks=[*comparison.remarks, *remarks])
    drawn = list(charts(comparison.runs))
    _refuse_what_has_no_form(figure, json, seeds, has_charts=bool(drawn))
    if json:
        print_json(comparison_answer(comparison))
    else:
        show(*texts(comparison, blamed, shows_all=all))
    if seeds:
        _show_seeds(comparison, seeds, seeds_in)
    if csv:
        _write_csv(comparison, csv)
    if figure:
        save(figure_of(drawn), figure)
    if html:
        _write_page(comparison, blamed, html)
    if not json:
        show(*map(str, filter(None, (csv, figure, html))))


def _refuse_what_has_no_form(
    figure: Path | None, json: bool, seeds: int | None, *, has_charts: bool
) -> None:
    """Raise InputError for a figure of nothing, and for means over seeds in JSON."""
    from testbed.core.errors import InputError

    if figure and not has_charts:
        raise InputError(
            f"--figure {figure}: no run has a table to draw (run them again with outputs=full)"
        )
    if json and seeds:
        raise InputError("--json: has no means over seeds (leave --json or --seeds out)")


def _show_seeds(comparison: "Comparison", seeds: int, folder: Path) -> None:
    from testbed.experiments.cli.output import WIDTH, show
    from testbed.experiments.compare.replicated_runs import on_seeds
    from testbed.experiments.runs.sweeps import replicated_tables

    show(*replicated_tables(on_seeds(comparison.runs, seeds, folder), WIDTH, {}))


def _write_csv(comparison: "Comparison", path: Path) -> None:
    from testbed.experiments.compare.comparison import tidy
    from testbed.experiments.runs.csv_tables import csv_text
    from testbed.experiments.runs.whole_files import write_text

    write_text(path, csv_text(tidy(comparison)))


def _write_page(comparison: "Comparison", blamed: "Blamed", path: Path) -> None:
    from testbed.experiments.compare.tables import compare_page
    from testbed.experiments.runs.whole_files import write_text

    write_text(path, compare_page(comparison, blamed))
