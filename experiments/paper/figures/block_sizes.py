"""Figures 18 and 19: what blocks cost, by kernel and by recovery, and latency against block size."""

from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.experiments.paper.scorecard import published_range
from testbed.experiments.runs.figure_style import new_figure

KERNELS: dict[str, tuple[str, Literal["-", "--"], str]] = {
    "paper": ("Paper's design, paged", "-", "#8c3b00"),
    "contiguous": ("Contiguous", "--", "#8a8f98"),
    "paged": ("Ours, paged", "-", "#2f78b7"),
}
MARKERS = {8: "o", 32: "s"}
BAND = "#ffe3c2"
TRACES = {
    ("opt-13b sharegpt", "vllm"): ("ShareGPT", "#2f78b7", "o"),
    ("opt-13b alpaca", "vllm"): ("Alpaca", "#f07f1a", "s"),
    ("opt-13b sharegpt", "our kernel"): ("ShareGPT, our kernel", "#9ecae1", "^"),
}
COSTS = {
    "recompute as drawn": ("Recompute", "#2f78b7", "o"),
    "swap in": ("Swap in", "#f0b860", "v"),
    "swap out": ("Swap out", "#8c3b00", "^"),
    "swap in + out": ("Swap in + out", "#f07f1a", "s"),
}
RECOVERIES = {
    "recompute": ("Recompute", "#2f78b7", "o"),
    "swap": ("Swap", "#f07f1a", "s"),
    "fused swap": ("Swap, fused kernel", "#8a8f98", "D"),
}
MACHINE = "a100-40gb"
TOPS = {"fig18b": 17.5, "fig19b": 2.5}  # s/token: where the paper's axes end


def fig18(table: pd.DataFrame) -> Figure:
    """Figure 18: (a) latency of attention kernels, (b) end-to-end latency against block size.

    (a) as measured, and over contiguous memory, where the paper's own number is; (b) below.
    """
    figure = new_figure(height_in=5.0)
    grid = figure.add_gridspec(2, 2)
    latency, overhead = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    times = table[table["figure"] == "fig18a"].pivot_table(
        index=["batch", "context"], columns="system", values="simulated"
    )
    _kernels(latency, times, "Kernel latency (µs)")
    low, high = published_range("fig18a", "kernel_overhead")
    overhead.axhspan(low, high, color=BAND, linewidth=0)
    overhead.text(0.5, (low + high) / 2, f"published: {low:g} to {high:g}%", fontsize=7, ha="center", va="center",
                  transform=overhead.get_yaxis_transform())  # fmt: skip
    over = 100 * (times.div(times["contiguous"], axis=0) - 1)
    _kernels(overhead, over.drop(columns="contiguous"), "Over contiguous (%)")
    overhead.set_ylim(min(-5, over.min().min() - 2), None)
    _kernel_legend(figure)
    blocks = figure.add_subplot(grid[1, :])
    means = table[table["figure"] == "fig18b"].groupby(["setting", "system", "block_size"])["simulated"].mean()
    for key, looks in TRACES.items():
        _curve(blocks, means[key], *looks)
    blocks.set(xlabel="Block size\n(b) End-to-end latency, OPT-13B, A100", ylim=(0, TOPS["fig18b"]))
    blocks.legend(loc="upper center")
    return figure


def _kernels(axes: Axes, times: pd.DataFrame, label: str) -> None:
    contexts = times.index.get_level_values("context").unique().sort_values()
    for system, (_, line, color) in KERNELS.items():
        for batch, marker in MARKERS.items():
            if system in times:
                curve = times[system].xs(batch, level="batch").sort_index()
                axes.plot(curve.index, curve, line, color=color, marker=marker, markersize=3)
    axes.set_xticks(contexts, [f"{context:g}" for context in contexts])
    axes.set(xlabel="Context length\n(a) Kernels, H200", ylabel=label)


def _kernel_legend(figure: Figure) -> None:
    handles = [Line2D([], [], color=color, linestyle=line, label=name) for name, line, color in KERNELS.values()]
    sizes = [Line2D([], [], color="#444444", linestyle="", marker=marker, markersize=3, label=f"Batch size {batch}")
             for batch, marker in MARKERS.items()]  # fmt: skip
    figure.legend(handles=[*handles, *sizes], loc="outside upper center", ncols=2)


def fig19(table: pd.DataFrame) -> Figure:
    """Figure 19: recompute against swap, (a) the time of one recovery, (b) end to end, by block size.

    (a) is of the paper's machine, and shows the share of a recompute that the paper's figure shows.
    """
    figure = new_figure(height_in=4.4)
    micro, blocks = figure.subplots(2, 1)
    ms = table[table["figure"] == "fig19a"].pivot_table(
        index="block_size", columns=["setting", "system"], values="simulated"
    )
    ours, fused = ms[MACHINE].copy(), ms[f"{MACHINE} fused"]
    ours["swap in + out"] = ours["swap in"] + ours["swap out"]
    _curve(micro, fused["swap in"] + fused["swap out"], "Swap in + out, fused", "#8a8f98", "D")
    share = (ours["recompute as drawn"] / ours["recompute"]).mean()
    for name, (label, color, marker) in COSTS.items():
        shown = f"{label} x {share:g}" if name == "recompute as drawn" else label
        _curve(micro, ours[name], shown, color, marker)
    micro.set(xlabel="Block size\n(a) Recovery of 256 tokens, A100", ylabel="Time (ms)", ylim=(0, None))
    micro.legend()
    means = table[table["figure"] == "fig19b"].groupby(["system", "block_size"])["simulated"].mean()
    for system, looks in RECOVERIES.items():
        _curve(blocks, means[system], *looks)
    blocks.set(xlabel="Block size\n(b) End-to-end latency", ylim=(0, TOPS["fig19b"]))
    blocks.legend(loc="upper center")
    return figure


def _curve(axes: Axes, curve: pd.Series, label: str, color: str, marker: str) -> None:
    axes.plot(curve.index, curve, color=color, marker=marker, markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve.index, [f"{size:g}" for size in curve.index])
    axes.set(ylabel="Normalized latency (s/token)")
    axes.minorticks_off()
