"""The tables and charts of a comparison, the same on the terminal and on the page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rich.table

from testbed.experiments.look.compare.differences import implied_by_names, readable
from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.look.compare.run_comparison import Comparison
from testbed.experiments.look.pages.page import NUMBER, Chart, Series, Table, render, whole_page
from testbed.experiments.look.run_charts import cdf_chart, over_time
from testbed.experiments.runs.quantities import Quantity, main_quantities, number
from testbed.experiments.runs.summary_table import ENGINE_COLUMNS, engine_rows
from testbed.experiments.runs.unbroken import unbroken

OVER_TIME = {
    "Batched requests": (("running",), 1.0),
    "Waiting requests": (("waiting",), 1.0),
    "KV cache (1,000 tokens)": (("live", "reserved", "internal"), 1e3),
}
DISTRIBUTIONS = {
    "ttft_s": "TTFT (s)",
    "tpot_s": "TPOT (s/token)",
    "normalized_latency_s_per_token": "Normalized latency (s/token)",
    "e2e_s": "End-to-end latency (s)",
}
DIFFERENCES = "What differs in the configs"
INTERVALS = 60
MANY_TIMES = 900.0  # percent; above, a factor reads better


def charts(runs: Sequence[FinishedRun]) -> Iterator[Chart]:
    """A curve for each run; a run without tables has none."""
    timed = [run for run in runs if run.spans is not None]
    served = [(run.name, run.requests) for run in runs if run.requests is not None]
    grids = [over_time(run.spans) for run in timed if run.spans is not None]
    for label, (columns, scale) in OVER_TIME.items() if grids else ():
        series = [
            Series(run.name, grid["time_s"], sum(grid[name] for name in columns) / scale)
            for run, grid in zip(timed, grids, strict=True)
        ]
        yield Chart(label.partition(" (")[0], "Time (s)", label, series)
    if served:
        series = [Series(name, *ttft_by_arrival(table)) for name, table in served]
        yield Chart("TTFT by time of arrival", "Time of arrival (s)", "Mean TTFT (s)", series)
    for key, label in DISTRIBUTIONS.items() if served else ():
        yield cdf_chart(label, {name: latencies(table)[key] for name, table in served})


def latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """The table of requests with the normalized latency, which it does not have."""
    return requests.assign(
        normalized_latency_s_per_token=requests["e2e_s"] / requests["output_len"]
    )


def ttft_by_arrival(requests: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The mean TTFT (s) of the requests that arrived in each of at most INTERVALS equal intervals
    (s).
    """
    arrival = requests["arrival_s"]
    interval = np.minimum(arrival * INTERVALS // max(float(arrival.max()), 1e-9), INTERVALS - 1)
    means = requests[["arrival_s", "ttft_s"]].groupby(interval).mean()
    return means["arrival_s"], means["ttft_s"]


def compare_page(comparison: Comparison) -> str:
    """Differences of the configs, the runs, main numbers, charts, then all numbers."""
    title = f"Compared: {'; '.join(run.name for run in comparison.runs)}"
    part = render(
        "look/compare/page.html", charts=list(charts(comparison.runs)), **_tables(comparison)
    )
    return whole_page(title=title, parts=[part])


def texts(comparison: Comparison, *, shows_all: bool = False) -> Iterator[str | rich.table.Table]:
    """Differences of the configs, descriptions and remarks, then the numbers that differ, for the
    terminal; shows_all: the others too.
    """
    yield from _different_configs(comparison.differences, shows_all)
    yield from (*_runs(comparison), *comparison.remarks)
    equal = [quantity for quantity, values in comparison.numbers.items() if len(set(values)) == 1]
    if len(equal) == len(comparison.numbers):
        yield "The runs are equal: every number is the same."
    hidden = [] if shows_all else equal
    kept = [quantity for quantity in comparison.numbers if quantity not in hidden]
    first = main_quantities(kept)
    groups = {
        "Main numbers": {quantity.title: quantity for quantity in first},
        "Other numbers": {quantity.label: quantity for quantity in kept if quantity not in first},
    }
    yield from (
        text_table(_numbers(comparison, caption, numbers))
        for caption, numbers in groups.items()
        if numbers
    )
    if hidden:
        yield f"{len(hidden)} numbers are the same in all runs (--all shows them)"
    yield from map(text_table, _engines(comparison))


def _different_configs(different: pd.DataFrame, shows_all: bool) -> Iterator[Any]:
    if different.empty:
        yield "The configs are the same."
        return
    implied = [] if shows_all else implied_by_names(different)
    yield text_table(_differences(DIFFERENCES, different.drop(index=implied)))
    if implied:
        yield f"{len(implied)} more keys: follow from these names (--all shows them)"


def _engines(comparison: Comparison) -> list[Table]:
    """The engines of each fleet, apart."""
    return [table for run in comparison.runs if (table := engines_table(run, run.name))]


def _runs(comparison: Comparison) -> list[str]:
    """Values of all runs, then values of each that another lacks."""
    parts = [run.parts for run in comparison.runs]
    shared = {name for name in parts[0] if len({of.get(name) for of in parts}) == 1}
    lines = [f"all runs: {'; '.join(text for name, text in parts[0].items() if name in shared)}"]
    for run, of in zip(comparison.runs, parts, strict=True):
        own = [f"{name}: {text}" for name, text in of.items() if name not in shared]
        if run.folder is not None and run.folder.name != Path(run.name).name:
            own.append(f"folder: {run.folder}")
        if own:
            lines.append(f"{run.name}: {'; '.join(own)}")
    return lines if shared else lines[1:]


def text_table(table: Table) -> rich.table.Table:
    """A table of a page for the terminal, with a line above the first row of each group, unless
    each row is a group.
    """
    shown = rich.table.Table(title=table.caption, title_justify="left")
    for name, kind in zip(table.head, table.classes, strict=True):
        shown.add_column(name, justify="right" if kind == NUMBER else "left", overflow="fold")
    kinds = table.row_classes or [""] * len(table.rows)
    has_groups = any(kind != "first" for kind in kinds)
    for row, kind in zip(table.rows, kinds, strict=True):
        if has_groups and kind == "first":
            shown.add_section()
        shown.add_row(*row)
    return unbroken(shown)


def _tables(comparison: Comparison) -> dict[str, Any]:
    """The parts of a comparison by their names in page.html."""
    different = comparison.differences
    implied = implied_by_names(different)
    return {
        "runs": _runs(comparison),
        "remarks": comparison.remarks,
        "main": _numbers(
            comparison,
            "Main numbers",
            {quantity.title: quantity for quantity in main_quantities(comparison.numbers)},
            "large",
        ),
        "differences": _differences(DIFFERENCES, different.drop(index=implied)),
        "implied": _differences("Models and GPUs", different.loc[implied]),
        "numbers": _numbers(
            comparison, "All numbers", {quantity.label: quantity for quantity in comparison.numbers}
        ),
        "engines": _engines(comparison),
    }


def engines_table(run: FinishedRun, title: str) -> Table | None:
    """Main numbers of each engine; None for a run of one."""
    rows = engine_rows(run.summary)
    if not rows:
        return None
    return Table(f"Engines of {title}", list(ENGINE_COLUMNS), rows, [NUMBER] * len(ENGINE_COLUMNS))


def _numbers(
    comparison: Comparison, caption: str, numbers: Mapping[str, Quantity], look: str = ""
) -> Table:
    """A row for each number: the first run's, and each other's with its change or error."""
    first, *others = (run.name for run in comparison.runs)
    head = [
        "quantity",
        first,
        *(text for pair in zip(others, comparison.words, strict=True) for text in pair),
    ]
    groups = ["" if look else quantity.group for quantity in numbers.values()]
    starts = [
        "" if group == last else "first" for group, last in zip(groups, ["", *groups], strict=False)
    ]
    rows = []
    for label, quantity in numbers.items():
        reference, *values = comparison.numbers[quantity]
        pairs = zip(values, comparison.changes(quantity), strict=True)
        cells = (text for value, by in pairs for text in (number(value), change(quantity, by)))
        rows.append([label, number(reference), *cells])
    return Table(caption, head, rows, ["", *[NUMBER] * (len(head) - 1)], starts, look)


def change(quantity: Quantity, value: float | None) -> str:
    """A change with its sign, in percent, in points, or as a factor."""
    if value is None:
        return "-"
    if quantity.is_share:
        return f"{value:+.2f} pt"
    return f"{value:+.1f}%" if value < MANY_TIMES else f"x {number(1 + value / 100)}"


def _differences(caption: str, differences: pd.DataFrame) -> Table:
    named = (readable(str(key), list(differences.loc[key])) for key in differences.index)
    head = ["key", *differences.columns]
    return Table(
        caption,
        head,
        [[key, *values] for key, values in named],
        [""] * len(head),
    )
