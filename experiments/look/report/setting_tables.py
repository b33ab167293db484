"""The tables of runs over several seeds: settings, and differences between them on equal seeds."""

from collections.abc import Mapping, Sequence

from testbed.experiments.look.pages.page import NUMBER, WORDS, Table
from testbed.experiments.runs.points import Point, settings
from testbed.experiments.runs.replicated import difference_columns, explained, mean_columns
from testbed.experiments.runs.sweep_table import futures_of, varying


def setting_tables(points: Sequence[Point]) -> list[Table]:
    """Means with intervals; and if settings share their seeds, differences with theirs."""
    groups = settings(points)
    axes, means = mean_columns(groups)
    results, same = varying(means)
    caption = "; ".join(["All settings", explained(groups), *same])
    left = {**axes, **futures_of([group.points[0] for group in groups])}
    tables = [columns_table(caption, left, results)]
    pairs, differences = difference_columns(groups)
    if pairs:
        shown, _ = varying(differences)
        tables.append(columns_table("Differences on the same seeds", pairs, shown))
    return tables


def columns_table(
    caption: str, left: Mapping[str, Sequence[str]], results: Mapping[str, Sequence[str]]
) -> Table:
    """A table of columns of words, and of numbers behind them."""
    columns = {**left, **results}
    rows = list(zip(*columns.values(), strict=True))
    words = [WORDS if any(" " in cell for cell in cells) else "" for cells in left.values()]
    return Table(caption, list(columns), rows, [*words, *[NUMBER] * len(results)])
