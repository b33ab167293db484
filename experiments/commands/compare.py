"""`testbed compare`: finished runs side by side, simulated or on a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from hydra.errors import InstantiationException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.commands.arguments.compare import parser
from experiments.commands.console import wide_console
from experiments.commands.one_line import one_line
from experiments.compare import curves
from experiments.compare.compare_page import compare_page
from experiments.compare.comparison import Comparison, compare, tidy
from experiments.compare.finished_run import read_runs
from experiments.compare.terms import Term, terms
from experiments.compare.texts import TERM_HEAD, difference_rows, number_head, number_rows, term_rows
from experiments.compare.what_it_was import what_it_was
from experiments.paper.style import save
from experiments.runs.whole_files import write_text
from testbed.core.errors import InputError

Blamed = Mapping[tuple[str, str], Sequence[Term]]


def main(argv: list[str]) -> None:
    """Print the tables; write what is asked for."""
    options = parser().parse_args(argv)
    comparison, blamed = blame(compare(read_runs(options.runs)))
    console = wide_console()
    show(console, comparison, blamed)
    drawing = curves.draw(comparison.runs) if curves.drawable(comparison.runs) else None
    written = [path for path in (options.csv, options.figure, options.html) if path]
    if options.csv:
        write_text(options.csv, tidy(comparison).to_csv(index=False))
    if options.figure and drawing:
        save(drawing, options.figure)
    if options.html:
        write_text(options.html, compare_page(comparison, drawing and curves.png(drawing), blamed))
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)


def blame(comparison: Comparison) -> tuple[Comparison, Blamed]:
    """The cost terms of every simulated run against every GPU's; where they cannot be had, a remark says why."""
    runs, found, remarks = comparison.runs, dict[tuple[str, str], Sequence[Term]](), list[str]()
    for a, b in [(a, b) for a in runs for b in runs if not a.on_gpu and b.on_gpu]:
        try:
            found[a.name, b.name] = terms(a, b)
        except (InputError, InstantiationException) as error:
            remarks.append(f"no cost terms of {a.name} against {b.name}: {one_line(error)}")
    return replace(comparison, remarks=[*comparison.remarks, *remarks]), found


def show(console: Console, comparison: Comparison, blamed: Blamed) -> None:
    """Print remarks, configs, numbers and terms."""
    said = [f"{run.name}: {what_it_was(run)}" for run in comparison.runs]
    for remark in [*said, *comparison.remarks]:
        console.print(remark, highlight=False, markup=False)
    different = comparison.differences
    if different.empty:
        console.print("The configs are the same.")
    else:
        rows = difference_rows(comparison)
        console.print(text_table("What differs in the configs", ["key", *different.columns], [rows], 1))
    groups = [
        [[group if i == 0 else "", *cells] for i, (_, cells) in enumerate(rows)]
        for group, rows in groupby(number_rows(comparison), key=lambda row: row[0])
    ]
    console.print(text_table("Numbers", ["", *number_head(comparison)], groups, 3))
    for (simulated, real), found in blamed.items():
        title = f"Cost terms of {simulated} against {real}, the largest error first"
        console.print(text_table(title, TERM_HEAD, [list(term_rows(found))], 1))


def text_table(title: str, head: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], words: int) -> Table:
    """Groups of rows with a line between; the first `words` columns are words, the others are aligned as numbers."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(head):
        table.add_column(escape(name), justify="left" if i < words else "right", overflow="fold")
    for rows in groups:
        for row in rows:
            table.add_row(*map(escape, row))
        table.add_section()
    return table
