"""Normalized latency against request rate, in the paper's layout; what Figures 12, 14, 16 and 17 share."""

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.paper.style import RC, SYSTEMS, new_figure

LIMIT = 1.0
ABOVE = 1.3
LABEL_SIZE = 7


def draw_panels(
    table: pd.DataFrame, titles: Mapping[str, str], num_rows: int, num_columns: int, height_in: float
) -> Figure:
    """One panel a setting, in the order of `titles` column by column; one legend over all."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=height_in)
        panels = figure.subplots(num_rows, num_columns, squeeze=False).T.flat
        points = table[(table["quantity"] == "normalized_latency") & (table["seed"] == 0)]
        for axes, (setting, title) in zip(panels, titles.items(), strict=True):
            _panel(axes, points[points["setting"] == setting])
            axes.set_xlabel(f"Request rate (req/s)\n{title}", fontsize=LABEL_SIZE)
        figure.supylabel("Normalized latency (s/token)", fontsize=8)
        handles = {
            label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        order = [label for label, _, _ in SYSTEMS.values() if label in handles]
        columns = 3 if len(order) > 4 else 2
        figure.legend([handles[label] for label in order], order, loc="outside upper center", ncols=columns)
        return figure


def _panel(axes: Axes, points: pd.DataFrame) -> None:
    for system, (label, color, marker) in SYSTEMS.items():
        curve = points[points["system"] == system].sort_values("rate")
        if curve.empty:
            continue
        curve = curve[: int((curve["simulated"] < LIMIT).sum()) + 1]
        shown = curve["simulated"].clip(upper=ABOVE)
        axes.plot(curve["rate"], shown, color=color, marker=marker, markersize=2.5, label=label, clip_on=True)
    axes.set(ylim=(0, LIMIT), xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(4))
