"""Tokens found and time to first token of agentic sessions against the size of the pool, one curve an order."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from experiments.paper.figures.mooncake_prefix_cache import ORDERS
from experiments.paper.style import RC, new_figure


def draw(table: pd.DataFrame) -> Figure:
    """Left what is found, then the mean and the 90th percentile of what users wait."""
    with mpl.rc_context(RC):
        figure = new_figure(7.0, 2.6)
        panels = figure.subplots(1, 3)
        size = int(table["block_size"].iloc[0])
        labels = ("hit_rate", 100, "Prompt tokens found (%)"), ("mean_ttft_s", 1, "Mean TTFT (s)")
        for axes, (quantity, scale, label) in zip(panels, (*labels, ("p90_ttft_s", 1, "p90 TTFT (s)")), strict=True):
            curves(axes, table, quantity, scale)
            axes.set(xlabel=f"Pool (blocks of {size} tokens)", ylabel=label)
        for axes in panels[1:]:  # a pool that holds all sessions answers fifty times as soon as a small one
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ORDERS))
        return figure


def curves(axes: Axes, table: pd.DataFrame, quantity: str, scale: float) -> None:
    """One curve an order, over evenly spaced sizes."""
    sizes = sorted(set(table["num_blocks"]))
    for order, (label, color, line) in ORDERS.items():
        curve = table[table["order"] == order].groupby("num_blocks")[quantity].mean().reindex(sizes)
        if curve.notna().any():
            axes.plot(range(len(sizes)), scale * curve, line, color=color, label=label, marker="o", markersize=3)
    axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    axes.tick_params(which="minor", bottom=False, left=False)
