"""A comparison as cells of text, for the terminal and the page."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import rich.table

from testbed.experiments.compare import curves
from testbed.experiments.compare.comparison import Compared, Comparison
from testbed.experiments.compare.terms import Term
from testbed.experiments.pages.page import NUMBER, Table, render
from testbed.experiments.runs.summary_table import number

MANY_TIMES = 900.0  # percent; above, a factor reads better
TERM_HEAD = ["term", "iterations", "measured, s", "predicted, s", "error, s", "error", "of busy time"]
MAIN = (
    ("service level", "goodput"), ("throughput", "requests"), ("TTFT", "p50"), ("TTFT", "p99"), ("TPOT", "p50"),
    ("TPOT", "p99"), ("normalized latency", "mean"), ("preemptions", "swap"), ("preemptions", "recompute"),
)  # fmt: skip
Blamed = Mapping[tuple[str, str], Sequence[Term]]  # by (simulated run, GPU run)


def number_head(comparison: Comparison) -> list[str]:
    """Quantity, unit, the first run, and each other run with its change or error."""
    first, *others = (run.name for run in comparison.runs)
    pairs = zip(others, comparison.words, strict=True)
    return ["quantity", "unit", first, *(text for pair in pairs for text in pair)]


def cells(one: Compared) -> list[str]:
    """A number of every run, each but the first with its change."""
    changed = zip(one.values[1:], one.changes, strict=True)
    return [number(one.values[0]), *(text for value, by in changed for text in (number(value), change(one, by)))]


def change(one: Compared, value: float | None) -> str:
    """A change with its sign, in percent, in points, or as a factor."""
    if value is None:
        return "-"
    if one.is_share:
        return f"{value:+.2f} pt"
    return f"{value:+.1f}%" if value < MANY_TIMES else f"x {number(1 + value / 100)}"


def difference_rows(comparison: Comparison) -> list[list[str]]:
    """A config key and its value in each run; a class without its module where class names differ."""
    found = comparison.differences
    named = (readable(str(key), list(found.loc[key])) for key in found.index)
    return [[key, *values] for key, values in named]


def readable(key: str, values: list[str]) -> tuple[str, list[str]]:
    """A key and its values; classes lose their module where their names differ."""
    short = [value.rpartition(".")[2] for value in values]
    if not key.endswith("._target_") or len(set(short)) < len(set(values)):
        return key, values
    return key.removesuffix("._target_"), short


def term_rows(terms: Sequence[Term]) -> Iterator[list[str]]:
    """The cells of each term."""
    for term in terms:
        percent = "-" if term.error_percent is None else f"{term.error_percent:+.1f}%"
        yield [
            term.term, f"{term.iterations:,}", number(term.measured_s), number(term.predicted_s),
            f"{term.error_s:+.3g}", percent, f"{term.share_points:+.2f} pt",
        ]  # fmt: skip


def compare_page(comparison: Comparison, blamed: Blamed) -> str:
    """The main numbers, charts, configs, then all numbers."""
    names = [run.name for run in comparison.runs]
    values = {
        "notes": messages(comparison),
        "main": _numbers(comparison, "main numbers", main_numbers(comparison), "large"),
        "charts": list(curves.charts(comparison.runs)),
        "differences": not comparison.differences.empty
        and Table("config keys", ["key", *comparison.differences.columns], difference_rows(comparison)),
        "terms": [
            Table(f"{simulated} against {real}", TERM_HEAD, term_rows(terms), ["", *[NUMBER] * (len(TERM_HEAD) - 1)])
            for (simulated, real), terms in blamed.items()
        ],
        "numbers": _numbers(comparison, "all numbers", comparison.numbers),
    }
    title = f"Compared: {', '.join(names)}"
    return render("pages/page.html", title=title, parts=[render("compare/page.html", **values)])


def main_numbers(comparison: Comparison) -> list[Compared]:
    """The numbers that decide between servers, in the order of MAIN."""
    found = {(one.group, one.name): one for one in comparison.numbers}
    return [found[key] for key in MAIN if key in found]


def _numbers(comparison: Comparison, caption: str, numbers: Sequence[Compared], look: str = "") -> Table:
    """Numbers as one table, with a line at the start of each group."""
    quantity, _, *names = number_head(comparison)
    rows = [[f"{one.group}, {one.name} ({one.unit})", *cells(one)] for one in numbers]
    groups = [one.group for one in numbers]
    starts = ["" if group == last else "first" for group, last in zip(groups, ["", *groups], strict=False)]
    return Table(caption, [quantity, *names], rows, ["", *[NUMBER] * len(names)], starts, look)


def messages(comparison: Comparison) -> list[str]:
    """The description of each run, and remarks."""
    return [*(f"{run.name}: {run.what_it_was}" for run in comparison.runs), *comparison.remarks]


def parts(comparison: Comparison, blamed: Blamed) -> Iterator[str | rich.table.Table]:
    """Descriptions of the runs, remarks, configs, the main numbers, all numbers and terms."""
    yield from messages(comparison)
    if comparison.differences.empty:
        yield "The configs are the same."
    else:
        head = ["key", *comparison.differences.columns]
        yield text_table("What differs in the configs", head, [difference_rows(comparison)], 1)
    head = ["", *number_head(comparison)]
    main = [[[one.group, one.name, one.unit, *cells(one)] for one in main_numbers(comparison)]]
    yield text_table("Main numbers", head, main, 3)
    groups = [
        [[group if i == 0 else "", one.name, one.unit, *cells(one)] for i, one in enumerate(found)]
        for group, found in groupby(comparison.numbers, key=lambda one: one.group)
    ]
    yield text_table("Numbers", head, groups, 3)
    for (simulated, real), found in blamed.items():
        title = f"Cost terms of {simulated} against {real}, the largest error first"
        yield text_table(title, TERM_HEAD, [list(term_rows(found))], 1)


def text_table(
    title: str, head: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], words: int
) -> rich.table.Table:
    """Groups of rows separated by lines; the first `words` columns are text, the others are aligned as numbers."""
    table = rich.table.Table(title=title, title_justify="left")
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < words else "right", overflow="fold")
    for rows in groups:
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table
