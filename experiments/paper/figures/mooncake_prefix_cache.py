"""Hit rate and throughput of a prefix cache against its size, one curve an eviction order."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.style import RC, new_figure

ORDERS = {
    "belady": ("Belady (oracle)", "#222222", "--"),
    "lru": ("LRU", "#1f77b4", "-"),
    "fifo": ("FIFO", "#d62728", "-"),
    "lfu": ("LFU", "#e6b800", "-"),
    "arc": ("ARC", "#2ca02c", "-"),
    "s3_fifo": ("S3-FIFO", "#9467bd", "-"),
    "cost_aware": ("Cost-aware", "#ff7f0e", "-"),
}


def draw(table: pd.DataFrame) -> Figure:
    """Above the untimed replay, where the oracle is a bound; below the timed runs."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=4.6)
        left, right = figure.subplots(2, 1)
        size = int(table["block_size"].iloc[0])
        _curves(left, table[table["kind"] == "replay"], "hit_rate", 100)
        left.set(xlabel=f"Cache (blocks of {size} tokens)", ylabel="Prompt blocks found (%)", ylim=(0, None))
        left.set_title("Untimed replay")
        _curves(right, table[table["kind"] == "timed"], "requests_per_s", 1, marker="o")
        right.set(xlabel=f"KV pool (blocks of {size} tokens)", ylabel="Throughput (requests/s)")
        sizes = sorted(set(table.loc[table["kind"] == "timed", "num_blocks"]))
        right.set_xticks(sizes, [f"{size:,}" for size in sizes])
        right.minorticks_off()
        right.set_title("Timed runs, to the last request")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return figure


def _curves(axes: Axes, table: pd.DataFrame, quantity: str, scale: float, marker: str = "") -> None:
    for order, (label, color, line) in ORDERS.items():
        curve = table[table["order"] == order].groupby("num_blocks")[quantity].mean()
        if len(curve):
            axes.plot(curve.index, scale * curve, line, color=color, label=label, marker=marker, markersize=3)
    axes.set_xscale("log")
