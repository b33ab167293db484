"""`testbed compare`: compares finished runs, simulated or on a GPU."""

from dataclasses import replace
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser
from testbed.experiments.runs.whole_files import write_text


def main(argv: list[str]) -> None:
    """Print the tables; write the requested files."""
    this = Parser("compare", "Compares finished runs, simulated or on a GPU.")
    this.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="run folders; changes are from the first")
    this.add_argument("--csv", type=Path, metavar="OUT", help="write a row per number and run")
    this.add_argument("--html", type=Path, metavar="OUT", help="write one page with curves and tables")
    this.add_argument("--figure", type=Path, metavar="OUT", help="draw the curves of all runs: .png, .pdf or .svg")
    options = this.parse_args(argv)
    from testbed.experiments.commands.console import wide_console
    from testbed.experiments.compare import curves
    from testbed.experiments.compare.comparison import compare, tidy
    from testbed.experiments.compare.finished_run import read_runs
    from testbed.experiments.compare.tables import compare_page, texts
    from testbed.experiments.compare.terms import blame
    from testbed.experiments.runs.figure_style import save
    from testbed.experiments.runs.plots import figure_of

    comparison = compare(read_runs(options.runs))
    blamed, remarks = blame(comparison.runs)
    comparison = replace(comparison, remarks=[*comparison.remarks, *remarks])
    charts = list(curves.charts(comparison.runs))
    if options.figure and not charts:
        raise InputError(f"--figure {options.figure}: no run has a table to draw (run them again with outputs=full)")
    console = wide_console()
    for part in texts(comparison, blamed):
        console.print(part)
    if options.csv:
        write_text(options.csv, tidy(comparison).to_csv(index=False))
    if options.figure:
        save(figure_of(charts), options.figure)
    if options.html:
        write_text(options.html, compare_page(comparison, blamed))
    for path in filter(None, (options.csv, options.figure, options.html)):
        console.print(str(path))
