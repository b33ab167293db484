"""The figure of speculative decoding under memory pressure."""

from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.experiments.paper.studies.speculation import COUNTED, IGNORED, speed_ups
from testbed.experiments.runs.plots import new_figure

LINES: dict[str, Literal["-", ":"]] = {COUNTED: "-", IGNORED: ":"}


def speculation(table: pd.DataFrame) -> Figure:
    """Speed-up over a run without drafts by request rate: a row for each drafter, a panel for each
    acceptance, a curve for each number of drafts, dotted where its memory is ignored.
    """
    speeds = speed_ups(table)
    drafters, acceptances = (
        list(dict.fromkeys(speeds[name])) for name in ("drafter", "acceptance")
    )
    if not drafters:
        return new_figure(3.0, 2.0)
    figure = new_figure(2.2 * len(acceptances), 2.0 * len(drafters))
    panels = figure.subplots(
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
    _legend(figure, numbers)
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


def _legend(figure: Figure, numbers: list[int]) -> None:
    lines = [
        Line2D([], [], color=f"C{i}", label=f"{k} {'draft' if k == 1 else 'drafts'}")
        for i, k in enumerate(numbers)
    ]
    lines += [
        Line2D([], [], color="black", linestyle=line, label=f"memory {memory}")
        for memory, line in LINES.items()
    ]
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines))
