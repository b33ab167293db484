"""Figures 12, 14 and 16 to 19: latency against request rate, and by block size.

Titles and labels, colours and markers of one figure alone are in its config, under `looks`.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from testbed.experiments.look.plots import SYSTEMS, new_figure
from testbed.experiments.paper.scorecard import limits, reference

Look = tuple[str, ...]  # label, colour and marker of a curve; before them what it is of
Looks = Mapping[Any, Any]
LIMIT = 1.0
ABOVE = 1.3
LABEL_SIZE = 7
BAND = "#ffe3c2"


def rate_curves(
    table: pd.DataFrame,
    titles: Mapping[str, str],
    num_rows: int = 2,
    num_columns: int = 3,
    height_in: float = 3.6,
) -> Figure:
    """Figures 12, 14, 16 and 17: one panel a setting, in the order of `titles` row by row; one
    legend over all.

    Three columns are as wide as both columns of a page.
    """
    figure = new_figure(7.0 if num_columns > 2 else 3.3, height_in)
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
    points = table[(table["quantity"] == "normalized_latency") & (table["seed"] == 0)]
    for axes, (setting, title) in zip(panels, titles.items(), strict=True):
        _rate_curves_of(axes, points[points["setting"] == setting])
        axes.set(ylim=(0, LIMIT), xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(f"Request rate (req/s)\n{title}", fontsize=LABEL_SIZE)
    figure.supylabel("Normalized latency (s/token)", fontsize=8)
    handles = {
        label: line
        for axes in figure.axes
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [label for label, _, _ in SYSTEMS.values() if label in handles]
    columns = len(order) if num_columns > 2 else 2
    figure.legend(
        [handles[label] for label in order], order, loc="outside upper center", ncols=columns
    )
    return figure


def _rate_curves_of(axes: Axes, points: pd.DataFrame) -> None:
    """A curve of each system, up to its first point above LIMIT."""
    for system, (label, color, marker) in SYSTEMS.items():
        curve = points[points["system"] == system].sort_values("rate")
        num_below = int((curve["simulated"] < LIMIT).sum())
        shown = curve[: num_below + 1]
        if len(shown):
            latencies = shown["simulated"].clip(upper=ABOVE)
            axes.plot(
                shown["rate"], latencies, color=color, marker=marker, markersize=2.5, label=label
            )


def fig18(
    table: pd.DataFrame, kernels: Looks, markers: Looks, curves: Sequence[Look], top: float
) -> Figure:
    """Figure 18: (a) latency of attention kernels, (b) end-to-end latency against block size.

    (a) as measured, and over contiguous memory, where the paper's own number is; (b) below.
    kernels: label, line and colour of each; markers: of each batch size; top: s/token, where the
    paper's axis ends.
    """
    figure = new_figure(height_in=5.0)
    grid = figure.add_gridspec(2, 2)
    latency, overhead = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    times = table[table["figure"] == "fig18a"].pivot_table(
        index=["batch", "context"], columns="system", values="simulated"
    )
    over = 100 * (times.div(times["contiguous"], axis=0) - 1).drop(columns="contiguous")
    _published_band(overhead)
    _kernel_curves(latency, times, kernels, markers)
    _kernel_curves(overhead, over, kernels, markers)
    latency.set_ylabel("Kernel latency (µs)")
    overhead.set_ylabel("Over contiguous (%)")
    overhead.set_ylim(min(-5, over.min().min() - 2), None)
    handles = [
        Line2D([], [], color=color, linestyle=line, label=name)
        for name, line, color in kernels.values()
    ]
    handles += [_marker_only(marker, f"Batch size {batch}") for batch, marker in markers.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    by_size = table[table["figure"] == "fig18b"]
    _latencies(figure.add_subplot(grid[1, :]), by_size, curves, top, ", OPT-13B, A100")
    return figure


def _published_band(axes: Axes) -> None:
    """The range of the paper's overhead of paged attention kernels, as a band."""
    (text,) = set(
        reference().query("figure == 'fig18a' and quantity == 'kernel_overhead'")["published"]
    )
    low, high = limits("range", text, "")
    axes.axhspan(low, high, color=BAND, linewidth=0)
    axes.text(
        0.5,
        (low + high) / 2,
        f"published: {low:g} to {high:g}%",
        fontsize=7,
        ha="center",
        va="center",
        transform=axes.get_yaxis_transform(),
    )


def _kernel_curves(axes: Axes, table: pd.DataFrame, kernels: Looks, markers: Looks) -> None:
    """A curve over the context length for each kernel in the table and each batch size."""
    for (system, (_, line, color)), (batch, marker) in product(kernels.items(), markers.items()):
        if system in table:
            curve = table[system].xs(batch, level="batch").sort_index()
            axes.plot(curve.index, curve, line, color=color, marker=marker, markersize=3)
    contexts = sorted(set(table.index.get_level_values("context")))
    axes.set_xticks(contexts, [f"{context:g}" for context in contexts])
    axes.set_xlabel("Context length\n(a) Kernels, H200")


def _marker_only(marker: str, label: str) -> Line2D:
    """A legend's entry of a marker without a line."""
    return Line2D([], [], color="#444444", linestyle="", marker=marker, markersize=3, label=label)


def fig19(
    table: pd.DataFrame, machine: str, costs: Looks, curves: Sequence[Look], top: float
) -> Figure:
    """Figure 19: recompute against swap, (a) the time of one recovery, (b) end to end, by block
    size.

    (a) is of the paper's machine, and shows the share of a recompute that the paper's figure shows.
    """
    figure = new_figure(height_in=4.4)
    micro, blocks = figure.subplots(2, 1)
    ms = table[table["figure"] == "fig19a"].pivot_table(
        index="block_size", columns=["setting", "system"], values="simulated"
    )
    ours, fused = ms[machine].copy(), ms[f"{machine} fused"]
    ours["swap in + out"] = ours["swap in"] + ours["swap out"]
    ours["fused"] = fused["swap in"] + fused["swap out"]
    share = (ours["recompute as drawn"] / ours["recompute"]).mean()
    for name, (label, color, marker) in costs.items():
        _curve(micro, ours[name], label.format(share=share), color, marker)
    micro.set(
        xlabel="Block size\n(a) Recovery of 256 tokens, A100", ylabel="Time (ms)", ylim=(0, None)
    )
    micro.legend()
    _latencies(blocks, table[table["figure"] == "fig19b"], curves, top, "")
    return figure


def _latencies(
    axes: Axes, table: pd.DataFrame, curves: Sequence[Look], top: float, about: str
) -> None:
    """A curve for each setting and system: means by block size."""
    means = table.groupby(["setting", "system", "block_size"])["simulated"].mean()
    for setting, system, *looks in curves:
        _curve(axes, means[setting, system], *looks)
    axes.set(xlabel=f"Block size\n(b) End-to-end latency{about}", ylim=(0, top))
    axes.legend(loc="upper center")


def _curve(axes: Axes, curve: pd.Series, label: str, color: str, marker: str) -> None:
    axes.plot(curve.index, curve, color=color, marker=marker, markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve.index, [f"{size:g}" for size in curve.index])
    axes.set(ylabel="Normalized latency (s/token)")
    axes.minorticks_off()
