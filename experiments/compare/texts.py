"""A comparison as cells of text, the same for terminal and page."""

from collections.abc import Iterator, Sequence

from experiments.compare.comparison import Compared, Comparison
from experiments.compare.terms import Term
from experiments.runs.summary_table import number

MANY_TIMES = 900.0  # percent; above, a factor reads better
TERM_HEAD = ["term", "iterations", "measured, s", "priced, s", "error, s", "error", "of busy time"]


def number_head(comparison: Comparison) -> list[str]:
    """Quantity, unit, the first run, and each other run with its error."""
    first, *others = (run.name for run in comparison.runs)
    return ["quantity", "unit", first, *(text for name in others for text in (name, "error"))]


def number_rows(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    """The group of each row, and its cells."""
    for one in comparison.numbers:
        others = (text for value, wrong in zip(one.values[1:], one.errors, strict=True)
                  for text in (number(value), error(one, wrong)))  # fmt: skip
        yield one.group, [one.name, one.unit, number(one.values[0]), *others]


def error(one: Compared, value: float | None) -> str:
    """With its sign, in percent or points."""
    if value is None:
        return "-"
    if one.is_share:
        return f"{value:+.2f} pt"
    return f"{value:+.1f}%" if value < MANY_TIMES else f"x {number(1 + value / 100)}"


def difference_rows(comparison: Comparison) -> list[list[str]]:
    """A config key and its value in each run; a class by its name, where that tells it from the others."""
    found = comparison.differences
    named = (readable(str(key), list(found.loc[key])) for key in found.index)
    return [[key, *values] for key, values in named]


def readable(key: str, values: list[str]) -> tuple[str, list[str]]:
    """A key and its values; classes lose their module where their names alone tell them apart."""
    short = [value.rpartition(".")[2] for value in values]
    if not key.endswith("._target_") or len(set(short)) < len(set(values)):
        return key, values
    return key.removesuffix("._target_"), short


def term_rows(terms: Sequence[Term]) -> Iterator[list[str]]:
    """The cells of each term."""
    for term in terms:
        percent = "-" if term.error_percent is None else f"{term.error_percent:+.1f}%"
        yield [
            term.term, f"{term.iterations:,}", number(term.measured_s), number(term.priced_s),
            f"{term.error_s:+.3g}", percent, f"{term.share_points:+.2f} pt",
        ]  # fmt: skip
