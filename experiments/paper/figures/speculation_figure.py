"""The figure of speculative decoding under memory pressure."""

from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from testbed.experiments.look.plots import new_figure
from testbed.experiments.paper.studies.speculation_study import (
    COUNTED,
    IGNORED,
    errors_without_memory,
    speed_ups,
)

LINES: dict[str, Literal["-", ":"]] = {COUNTED: "-", IGNORED: ":"}
# Of each error without the drafter's memory: its label, and the factor to the label's unit.
ERRORS = {
    "batch": ("Error of the batch (%)", 100),
    "throughput": ("Error of tokens/s (%)", 100),
    "preemptions missed": ("Preemptions missed", 1),
}


def speculation(table: pd.DataFrame) -> Figure:
    """Speed-up over a run without drafts by request rate: a row for each drafter, a panel for each
    acceptance, a curve for each number of drafts, dotted if its memory is ignored. Below, what
    ignoring it does, from the least to the most over acceptances and numbers of drafts.
    """
    speeds = speed_ups(table)
    drafters, acceptances = (
        list(dict.fromkeys(speeds[name])) for name in ("drafter", "acceptance")
    )
    if not drafters:
        return new_figure(3.0, 2.0)
    figure = new_figure(2.2 * max(len(acceptances), 2), 2.0 * len(drafters) + 2.2)
    heights = [2.0 * len(drafters), 2.2]
    (upper,), (lower,) = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
    panels = upper.subplots(
        len(drafters), len(acceptances), sharex=True, sharey="row", squeeze=False
    )
    numbers = sorted(set(speeds["num_drafts"]))
    for drafter, row in zip(drafters, panels, strict=True):
        largest = speeds[speeds["drafter"] == drafter]["speed_up"].max()
        row[0].set(ylabel=f"Speed-up, {drafter}", ylim=(0, 1.08 * max(largest, 1)))
        for acceptance, axes in zip(acceptances, row, strict=True):
            chosen = (speeds["drafter"] == drafter) & (speeds["acceptance"] == acceptance)
            _panel(axes, speeds[chosen], numbers)
    for acceptance, axes in zip(acceptances, panels[0], strict=True):
        axes.set_title(f"Acceptance {acceptance:g}")
    for axes in panels[-1]:
        axes.set_xlabel("Request rate (req/s)")
    _legend(upper, numbers)
    _draw_errors(lower, errors_without_memory(table))
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, numbers: list[int]) -> None:
    axes.axhline(1, color="black", linewidth=0.6)
    for (number, memory), curve in rows.groupby(["num_drafts", "memory"], sort=False):
        axes.plot(
            curve["rate"],
            curve["speed_up"],
            LINES[str(memory)],
            color=f"C{numbers.index(number)}",
            marker="o",
            markersize=2,
        )


def _draw_errors(figure: SubFigure, errors: pd.DataFrame) -> None:
    """A panel for each kind of error, with a band for each drafter."""
    row = figure.subplots(1, len(ERRORS), sharex=True)
    for axes, (name, (label, factor)) in zip(row, ERRORS.items(), strict=True):
        axes.axhline(0, color="black", linewidth=0.6)
        for i, (drafter, rows) in enumerate(errors.groupby("drafter", sort=False)):
            by_rate, look = factor * rows.groupby("rate")[name].agg(["min", "max"]), f"C{i + 3}"
            ends = by_rate.index, by_rate["min"], by_rate["max"]
            axes.fill_between(*ends, color=look, alpha=0.4, label=str(drafter))
            for end in ends[1:]:
                axes.plot(by_rate.index, end, color=look, marker="o", markersize=2, linewidth=0.6)
        axes.set(xlabel="Request rate (req/s)", ylabel=label)
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def _legend(figure: SubFigure, numbers: list[int]) -> None:
    lines = [
        Line2D([], [], color=f"C{i}", label=f"{k} {'draft' if k == 1 else 'drafts'}")
        for i, k in enumerate(numbers)
    ]
    lines += [
        Line2D([], [], color="black", linestyle=line, label=f"memory {memory}")
        for memory, line in LINES.items()
    ]
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines))
