"""Figures 12, 14, 16 and 17: normalized latency against request rate, in the paper's layout."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from testbed.experiments.runs.figure_style import SYSTEMS, new_figure

BASIC = {
    "opt-13b sharegpt": "(a) OPT-13B, 1 GPU, ShareGPT",
    "opt-66b sharegpt": "(b) OPT-66B, 4 GPUs, ShareGPT",
    "opt-175b sharegpt": "(c) OPT-175B, 8 GPUs, ShareGPT",
    "opt-13b alpaca": "(d) OPT-13B, 1 GPU, Alpaca",
    "opt-66b alpaca": "(e) OPT-66B, 4 GPUs, Alpaca",
    "opt-175b alpaca": "(f) OPT-175B, 8 GPUs, Alpaca",
}
SAMPLING = {
    "opt-13b alpaca parallel 2": "(a) Parallel sampling, 2",
    "opt-13b alpaca parallel 4": "(b) Parallel sampling, 4",
    "opt-13b alpaca parallel 6": "(c) Parallel sampling, 6",
    "opt-13b alpaca beam 2": "(d) Beam search, 2",
    "opt-13b alpaca beam 4": "(e) Beam search, 4",
    "opt-13b alpaca beam width 6": "(f) Beam search, 6",
}
PREFIXES = {
    "llama-13b wmt16 en-de 1-shot prefix 80 tokens": "(a) 1-shot prefix",
    "llama-13b wmt16 en-de 5-shot prefix 341 tokens": "(b) 5-shot prefix",
}
LIMIT = 1.0
ABOVE = 1.3
LABEL_SIZE = 7


def fig12(table: pd.DataFrame) -> Figure:
    """Figure 12: basic sampling, three models, two data sets."""
    return draw_panels(table, BASIC, 2, 3, 3.6)


def fig14(table: pd.DataFrame) -> Figure:
    """Figure 14: parallel sampling and beam search."""
    return draw_panels(table, SAMPLING, 2, 3, 3.6)


def fig16(table: pd.DataFrame) -> Figure:
    """Figure 16: translation behind a shared prefix."""
    return draw_panels(table, PREFIXES, 1, 2, 2.2)


def fig17(table: pd.DataFrame) -> Figure:
    """Figure 17: the chatbot workload."""
    return draw_panels(table, {"opt-13b chatbot": "OPT-13B, chatbot"}, 1, 1, 2.4)


def draw_panels(
    table: pd.DataFrame, titles: Mapping[str, str], num_rows: int, num_columns: int, height_in: float
) -> Figure:
    """One panel a setting, in the order of `titles` row by row, as the paper has them; one legend over all.

    Three columns are as wide as both columns of a page.
    """
    figure = new_figure(7.0 if num_columns > 2 else 3.3, height_in)
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
    points = table[(table["quantity"] == "normalized_latency") & (table["seed"] == 0)]
    for axes, (setting, title) in zip(panels, titles.items(), strict=True):
        _panel(axes, points[points["setting"] == setting])
        axes.set_xlabel(f"Request rate (req/s)\n{title}", fontsize=LABEL_SIZE)
    figure.supylabel("Normalized latency (s/token)", fontsize=8)
    handles = {
        label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [label for label, _, _ in SYSTEMS.values() if label in handles]
    columns = len(order) if num_columns > 2 else 2
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
