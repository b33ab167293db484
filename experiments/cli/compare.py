"""`testbed compare`: finished runs next to each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AsJson

if TYPE_CHECKING:
    from testbed.experiments.look.compare.run_comparison import Comparison

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
    files: Files = NO_FILES,
    all: Annotated[bool, Parameter(help="also numbers that are the same in all runs")] = False,
    json: AsJson = False,
) -> None:
    """Compare finished runs, simulated or on a GPU."""
    from testbed.experiments.cli.json_answers import comparison_answer
    from testbed.experiments.cli.output import print_json, show
    from testbed.experiments.look.compare.named_runs import read_runs
    from testbed.experiments.look.compare.run_comparison import compare
    from testbed.experiments.look.compare.tables import texts

    comparison = compare(read_runs(runs))
    _check_figure(comparison, files)
    if json:
        print_json(comparison_answer(comparison))
    else:
        show(*texts(comparison, shows_all=all))
    files.write(comparison)
    if not json:
        show(*map(str, files.paths))


def _check_figure(comparison: "Comparison", files: Files) -> None:
    """Raise InputError for a figure of nothing."""
    from testbed.core.errors import InputError
    from testbed.experiments.look.compare.tables import charts

    if files.figure and not any(charts(comparison.runs)):
        raise InputError(
            key="--figure",
            value=files.figure,
            problem="no run has a table to draw",
            remedy="run them again with outputs=tables",
        )
