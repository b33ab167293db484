"""`testbed compare`: finished runs next to each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AsJson, AtLeastOne, PlugIns

if TYPE_CHECKING:
    from testbed.experiments.look.compare.run_comparison import Comparison

RUNS = Path("runs")

Runs = Annotated[
    str,
    Parameter(
        name="[NAME=]RUN", required=True, help="run folders; changes are from the first of them"
    ),
]
Csv = Annotated[Path, Parameter(metavar="OUT", help="write a row per number and run")]
Html = Annotated[Path, Parameter(metavar="OUT", help="write one page with curves and tables")]
Drawing = Annotated[
    Path, Parameter(metavar="OUT", help="draw the curves of all runs (.png, .pdf or .svg)")
]
SeedCount = Annotated[
    AtLeastOne,
    Parameter(
        help="also simulate each run with the seeds 0 to N - 1: means with 95% intervals, and "
        "differences on the same seeds"
    ),
]
RunFolders = Annotated[
    Path, Parameter(name="--runs", metavar="DIR", help="folders of the runs of --seeds")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Files:
    """The files that are written too; None: not written."""

    csv: Csv | None = None
    html: Html | None = None
    figure: Drawing | None = None

    @property
    def paths(self) -> list[Path]:
        """The files that the command writes."""
        return [path for path in (self.csv, self.figure, self.html) if path is not None]

    def write(self, comparison: "Comparison") -> None:
        """Write each that is asked for."""
        from testbed.experiments.look.compare.run_comparison import tidy
        from testbed.experiments.look.compare.tables import charts, compare_page
        from testbed.experiments.look.plots import figure_of, save
        from testbed.experiments.runs.whole_files import write_text

        if self.csv:
            write_text(self.csv, tidy(comparison).to_csv(index=False))
        if self.figure:
            save(figure_of(list(charts(comparison.runs))), self.figure)
        if self.html:
            write_text(self.html, compare_page(comparison))


NO_FILES = Files()


def compare(
    *runs: Runs,
    plug_in: PlugIns | None = None,
    files: Files = NO_FILES,
    all: Annotated[bool, Parameter(help="also numbers that are the same in all runs")] = False,
    seeds: SeedCount | None = None,
    seeds_in: RunFolders = RUNS,
    json: AsJson = False,
) -> None:
    """Compare finished runs, simulated or on a GPU."""
    from testbed.experiments.cli.json_answers import comparison_answer
    from testbed.experiments.cli.output import print_json, show
    from testbed.experiments.look.compare.named_runs import read_runs
    from testbed.experiments.look.compare.run_comparison import compare
    from testbed.experiments.look.compare.tables import texts

    comparison = compare(read_runs(runs, plug_in or ()))
    _refuse_what_has_no_form(comparison, files, json, seeds)
    if json:
        print_json(comparison_answer(comparison))
    else:
        show(*texts(comparison, shows_all=all))
    if seeds:
        _show_seeds(comparison, seeds, seeds_in)
    files.write(comparison)
    if not json:
        show(*map(str, files.paths))


def _refuse_what_has_no_form(
    comparison: "Comparison", files: Files, json: bool, seeds: int | None
) -> None:
    """Raise InputError for a figure of nothing, and for means over seeds in JSON."""
    from testbed.core.errors import InputError
    from testbed.experiments.look.compare.tables import charts

    if files.figure and not any(charts(comparison.runs)):
        raise InputError(
            key="--figure",
            value=files.figure,
            problem="no run has a table to draw",
            remedy="run them again with outputs=tables",
        )
    if json and seeds:
        raise InputError(
            key="--json", problem="has no means over seeds", remedy="leave --json or --seeds out"
        )


def _show_seeds(comparison: "Comparison", seeds: int, folder: Path) -> None:
    from testbed.experiments.cli.output import WIDTH, show
    from testbed.experiments.look.compare.replicated_runs import on_seeds
    from testbed.experiments.runs.sweep_table import replicated_tables

    show(*replicated_tables(on_seeds(comparison.runs, seeds, folder), WIDTH, {}))
