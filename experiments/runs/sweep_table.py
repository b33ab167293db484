"""A sweep as a table of axes and results, and as a figure over its main axis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from testbed.experiments.look.pages.page import Chart, Series
from testbed.experiments.look.plots import figure_of, save
from testbed.experiments.runs.equal_caches import remark_on_caches
from testbed.experiments.runs.one_source import OF_THE_LOAD, group_of
from testbed.experiments.runs.points import SEED, Point, Setting, are_replicated, axes, settings
from testbed.experiments.runs.quantities import WINDOW, few_requests, main_numbers
from testbed.experiments.runs.replicated import EQUAL, difference_columns, explained, mean_columns
from testbed.experiments.runs.run_words import (
    future_read_by,
    remark_on_first_tokens,
    remark_on_planning,
    remark_on_pools,
    remark_on_ways,
)
from testbed.experiments.runs.setting_remarks import (
    fillings,
    first_ones,
    overloads,
    rejections,
    remarks,
    waits,
)
from testbed.experiments.runs.sweep_metrics import panels_of, with_shares
from testbed.experiments.runs.unbroken import unbroken
from testbed.experiments.runs.whole_files import write_cells
from testbed.run.summaries import costs_of, flat, merge_axes
from testbed.study.replications import MORE_SEEDS, NOT_DISTINGUISHABLE, interval

FEWEST = 3  # values of an axis that is drawn
PADDING = 3  # characters of a column beside its cells
WIDEST, SHARE = 40, 4  # characters of an axis's value, and the part of a terminal that it may take
FUTURE = "reads the future"  # the column of what no real server could know
FACTOR = 20.0  # between the latencies of a chart with a logarithmic axis
LABELS = {
    "arrivals.rate": "Request rate (req/s)",
    "policy.block_size": "Block size (tokens)",
    "server.num_gpus": "GPUs",
}


def write_sweep(path: Path, points: Sequence[Point], names: Sequence[str]) -> None:
    """Write a CSV row per point: axes, folder, the run's description and its whole summary.

    names: the axes of the whole sweep, of which some points may have failed.
    """
    rows = list[dict[str, Any]]()
    for point in points:
        on_axes = {name: point.values.get(name) for name in names}
        results = merge_axes(names, flat(point.summary))
        rows.append({**on_axes, "folder": point.folder, **results})
    columns = dict.fromkeys(key for row in rows for key in row)
    write_cells(path, {name: [row.get(name) for row in rows] for name in columns})


def shown(points: Sequence[Point], width: int, names: Sequence[str]) -> Group:
    """The costs' sources, and a table of the axes `names` and as many main numbers as fit `width`
    characters.

    Seeds are replications: a row has their means with intervals, and a second table the differences
    between settings on the same seeds.
    """
    costs = list(dict.fromkeys(costs_of(point.summary) for point in points))
    head = [f"Sweep: {len(points)} points", *(f"costs: {text}" for text in costs if text)]
    groups = settings(points)
    firsts = [group.points[0] for group in groups]
    head += [*_remarks(points, groups, names), WINDOW]
    if are_replicated(points):
        return Group(*map(Text, head), *replicated_tables(groups, width, futures_of(firsts)))
    columns = {name: [str(point.values.get(name, "")) for point in points] for name in names}
    columns |= futures_of(points)
    results, same = varying(main_numbers([point.summary for point in points]))
    labels = _labels([point.values for point in points], width)
    head += [*same, *_explained(labels)]
    left = _labelled(columns, labels)
    return Group(*map(Text, head), _table(left, _fitting(left, results, width)))


def _remarks(
    points: Sequence[Point], groups: Sequence[Setting], names: Sequence[str]
) -> Iterator[str]:
    """What to know of all points, and of each, before their numbers. names: the axes."""
    summaries = [point.summary for point in points]
    settled = [name for name in names if name != SEED]
    of_servers = [name for name in settled if group_of(name) not in OF_THE_LOAD] or settled
    firsts = {_name_of(group.points[0], of_servers): group.points[0].summary for group in groups}
    runs = {
        _name_of(group.points[0], settled): [point.summary for point in group.points]
        for group in groups
    }
    yield from remark_on_ways(firsts)
    yield from remark_on_pools({name: of_seeds[0] for name, of_seeds in runs.items()})
    yield from remark_on_planning(firsts)
    yield from remark_on_first_tokens(summaries)
    yield from first_ones([*remark_on_caches(runs)])
    yield from remarks(overloads, runs)
    yield from remarks(rejections, {_name_of(of, names): [of.summary] for of in points})
    yield from remarks(fillings, runs)
    yield from remarks(waits, runs)
    yield from few_requests(summaries)


def _labels(choices: Iterable[Mapping[str, str]], width: int) -> dict[str, str]:
    """Short names of values that are too long for a column, as those of a command may be."""
    texts = dict.fromkeys(str(value) for chosen in choices for value in chosen.values())
    long = [text for text in texts if len(text) > min(WIDEST, width // SHARE)]
    return {text: f"({number})" for number, text in enumerate(long, 1)}


def _explained(labels: Mapping[str, str]) -> list[str]:
    """A line for each label, from which its text can be copied."""
    return [f"{label} {text}" for text, label in labels.items()]


def _labelled(
    columns: Mapping[str, Sequence[str]], labels: Mapping[str, str]
) -> dict[str, list[str]]:
    """The columns with the labels in place of the texts, the longest first."""
    shown = {name: [*cells] for name, cells in columns.items()}
    for text in sorted(labels, key=len, reverse=True):
        for cells in shown.values():
            cells[:] = [cell.replace(text, labels[text]) for cell in cells]
    return shown


def replicated_tables(
    groups: Sequence[Setting],
    width: int,
    futures: Mapping[str, Sequence[str]],
) -> list[Text | Table]:
    """The means of settings with their intervals, and the differences on the same seeds.

    futures: columns that stand behind the axes.
    """
    left, means = mean_columns(groups)
    labels = _labels([group.chosen for group in groups], width)
    left = _labelled({**left, **futures}, labels)
    pairs, differences = difference_columns(groups)
    if not pairs:
        results, same = varying(means)
        texts = [*same, explained(groups), *_explained(labels)]
        return [*map(Text, texts), _table(left, _fitting(left, results, width))]
    different = {name: cells for name, cells in differences.items() if {*cells} != {EQUAL}}
    told, unclear = _told_apart(different or differences)
    told, alike = varying(told, "in all rows of the second table")
    pairs = _labelled(pairs, labels)
    results, same = varying(means, but=[*told])
    results = _fitting(left, results, width, first=[*told][:1])
    shown = {name: cells for name, cells in told.items() if name in results}
    return [
        *map(Text, [*same, explained(groups), *_explained(labels), *alike, *unclear]),
        _table(left, results),
        _table(pairs, _fitting(pairs, shown, width), title="Differences on the same seeds"),
    ]


def _told_apart(
    differences: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """The columns in which a difference is told apart, all columns if there is none or one row, and
    lines on the cells that are not.
    """
    told = {
        name: cells
        for name, cells in differences.items()
        if len(cells) == 1 or not all(cell.startswith(NOT_DISTINGUISHABLE) for cell in cells)
    }
    left = {name: cells for name, cells in differences.items() if told and name not in told}
    lines = [
        f"in all rows of the second table {name} {'; '.join(dict.fromkeys(cells))}"
        for name, cells in left.items()
    ]
    if any(NOT_DISTINGUISHABLE in cell for cells in differences.values() for cell in cells):
        lines.append(MORE_SEEDS)
    return told or dict(differences), lines


def varying(
    results: Mapping[str, Sequence[str]], where: str = "at all points", but: Sequence[str] = ()
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """The columns whose cells differ, with those of `but`, and a line that says the others."""
    columns = {name: cells for name, cells in results.items() if len(set(cells)) > 1 or name in but}
    same = [f"{name} {cells[0]}" for name, cells in results.items() if name not in columns]
    if not columns:
        return dict(results), []
    return columns, [f"the same {where}: {', '.join(same)}"] if same else []


def _fitting(
    left: Mapping[str, Sequence[str]],
    results: Mapping[str, Sequence[str]],
    width: int,
    first: Sequence[str] = (),
) -> dict[str, Sequence[str]]:
    """As many of the results as fit behind the columns of `left`, at least one, those of `first`
    before others; in the order of the results.
    """
    chosen = set[str]()
    space = width - 1 - sum(_width(name, cells) for name, cells in left.items())
    for name in sorted(results, key=lambda name: name not in first):
        space -= _width(name, results[name])
        if space < 0 and chosen:
            break
        chosen.add(name)
    return {name: cells for name, cells in results.items() if name in chosen}


def _table(
    left: Mapping[str, Sequence[str]],
    results: Mapping[str, Sequence[str]],
    title: str | None = None,
) -> Table:
    """The columns of `left`, and behind them the results."""
    columns = {**left, **results}
    table = Table(title=title, title_justify="left")
    for name in columns:
        justify: JustifyMethod = "left" if name in left else "right"
        table.add_column(name, justify=justify)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return unbroken(table, len(columns))


def _width(name: str, cells: Sequence[str]) -> int:
    return max(map(len, [name, *cells])) + PADDING


def futures_of(points: Sequence[Point]) -> dict[str, list[str]]:
    """The column of what each point reads of the future, if any does."""
    futures = [future_read_by(point.summary) for point in points]
    return {FUTURE: futures} if any(futures) else {}


def _name_of(point: Point, names: Sequence[str]) -> str:
    """The values in which a point differs."""
    return " ".join(f"{name}={point.values[name]}" for name in names if name in point.values)


def draw_sweep(path: Path, points: Sequence[Point], metrics: Sequence[str] = ()) -> bool:
    """Draw the figure of a sweep over a number; returns False if no axis is a number. metrics: see
    `sweep_charts`.
    """
    names = axes(points)
    different = pd.DataFrame(
        [[point.values.get(name, "") for name in names] for point in points], columns=names
    )
    charts = sweep_charts(different, [flat(point.summary) for point in points], metrics)
    if charts:
        save(figure_of(charts), path)
    return bool(charts)


def sweep_charts(
    axes: pd.DataFrame, rows: Sequence[dict[str, Any]], metrics: Sequence[str] = ()
) -> list[Chart]:
    """The charts of runs over the option that is a number with the most values.

    axes: a row for each run, a column for each differing option. rows: flat summaries. metrics:
    columns to draw, in place of PANELS. The list is empty unless a number has FEWEST values or
    more.
    """
    panels = panels_of(metrics)
    numbers = {str(name): pd.to_numeric(axes[name], errors="coerce") for name in axes}
    counts = {
        name: values.nunique()
        for name, values in numbers.items()
        if values.notna().all() and name != SEED
    }
    key = max(counts, key=lambda name: (name == "arrivals.rate", counts[name]), default="")
    if counts.get(key, 0) < FEWEST:
        return []
    others = [name for name in axes if name not in (key, SEED)]
    labels = [
        ", ".join(map(legible, others, values))
        for values in axes[others].astype(str).to_numpy().tolist()
    ]
    table = (
        pd.DataFrame([with_shares(row) for row in rows])
        .assign(**{"x": numbers[key].to_numpy(), "name": labels})
        .sort_values("x", kind="stable")
    )
    filled = {"", *(name for name in table if table[name].notna().any())}
    label = LABELS.get(key, key)
    return [
        _panel(table, column, label, *panel)
        for column, panel in panels.items()
        if ({column} if metrics else {column, panel[1]}) <= filled
    ]


def legible(key: str, value: str) -> str:
    """An option in a legend; its key stands before a number, a truth value and no value."""
    name = key.rpartition(".")[2]
    if value in ("null", "None", "-", ""):
        return f"no {name}"
    is_number = value.replace(".", "", 1).replace("-", "", 1).isdigit()
    return f"{name} {value}" if is_number or value.lower() in ("true", "false") else value


def _panel(table: pd.DataFrame, column: str, x_label: str, label: str, option: str) -> Chart:
    """The chart of one column: a curve for each name, and the limit if all rows have the same."""
    series = [_curve(str(name), part, column) for name, part in table.groupby("name", sort=False)]
    positive = table[column][table[column] > 0]
    is_latency = "(s" in label
    is_log = is_latency and len(positive) > 0 and positive.max() > FACTOR * positive.min()
    limits = set(table[option].dropna()) if option in table else set()
    limit = limits.pop() if len(limits) == 1 else None
    return Chart(
        label.partition(" (")[0], x_label, label, series, markers=True, log_y=is_log, limit=limit
    )


def _curve(name: str, points: pd.DataFrame, column: str) -> Series:
    """The curve of one name; if several rows have one x, their mean with a band."""
    if points["x"].is_unique:
        return Series(name, points["x"], points[column])
    groups = [(x, group.dropna().tolist()) for x, group in points.groupby("x")[column]]
    means = [(x, interval(values)) for x, values in groups if values]
    bands = [
        (mean.mean - (mean.half_width or 0), mean.mean + (mean.half_width or 0))
        for _, mean in means
    ]
    return Series(name, [x for x, _ in means], [mean.mean for _, mean in means], bands)
