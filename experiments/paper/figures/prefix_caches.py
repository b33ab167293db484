"""Prefix caches beyond the paper, one curve an eviction order, against the size of the cache."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from testbed.experiments.runs.figure_style import new_figure

ORDERS = {
    "belady": ("Belady (oracle)", "#222222", "--"),
    "lru": ("LRU", "#1f77b4", "-"),
    "fifo": ("FIFO", "#d62728", "-"),
    "lfu": ("LFU", "#e6b800", "-"),
    "arc": ("ARC", "#2ca02c", "-"),
    "cost_aware": ("Cost-aware", "#ff7f0e", "-"),
}
SESSION_PANELS = {
    "hit_rate": (100, "Prompt tokens found (%)"),
    "mean_ttft_s": (1, "Mean TTFT (s)"),
    "p90_ttft_s": (1, "p90 TTFT (s)"),
}


def mooncake(table: pd.DataFrame) -> Figure:
    """Hit rate of a prefix cache against its size in untimed replay, one curve an eviction order."""
    figure = new_figure(height_in=2.6)
    axes = figure.subplots()
    _curves(axes, table, "hit_rate", 100)
    axes.set(xlabel=f"Cache (blocks of {table['block_size'].iloc[0]} tokens)", xscale="log")
    axes.set(ylabel="Prompt blocks found (%)", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _curves(axes: Axes, table: pd.DataFrame, quantity: str, scale: float, marker: str = "") -> None:
    sizes = sorted(set(table["num_blocks"]))
    for order, (label, color, line) in ORDERS.items():
        curve = table[table["order"] == order].groupby("num_blocks")[quantity].mean().reindex(sizes)
        if curve.notna().any():
            axes.plot(curve.index, scale * curve, line, color=color, label=label, marker=marker, markersize=3)


def agent_sessions(table: pd.DataFrame) -> Figure:
    """Tokens found and time to first token of agentic sessions against the size of the pool, one curve an order."""
    figure = new_figure(7.0, 2.6)
    panels = figure.subplots(1, 3)
    size = int(table["block_size"].iloc[0])
    sizes = sorted(set(table["num_blocks"]))
    spaced = table.assign(num_blocks=table["num_blocks"].map(sizes.index))
    for axes, (quantity, (scale, label)) in zip(panels, SESSION_PANELS.items(), strict=True):
        _curves(axes, spaced, quantity, scale, marker="o")
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.tick_params(which="minor", bottom=False, left=False)
        axes.set(xlabel=f"Pool (blocks of {size} tokens)", ylabel=label)
    for axes in panels[1:]:  # a pool that holds all sessions answers fifty times as soon as a small one
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ORDERS))
    return figure
