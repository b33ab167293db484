"""Figures 12, 14 and 16 to 19: latency against request rate, and by block size."""

from collections.abc import Mapping
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from testbed.experiments.paper.scorecard import published_range
from testbed.experiments.runs.plots import SYSTEMS, new_figure

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
        for system, (label, color, marker) in SYSTEMS.items():
            curve = points[(points["setting"] == setting) & (points["system"] == system)].sort_values("rate")
            shown = curve[: int((curve["simulated"] < LIMIT).sum()) + 1]
            if len(shown):
                latencies = shown["simulated"].clip(upper=ABOVE)
                axes.plot(shown["rate"], latencies, color=color, marker=marker, markersize=2.5, label=label)
        axes.set(ylim=(0, LIMIT), xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(f"Request rate (req/s)\n{title}", fontsize=LABEL_SIZE)
    figure.supylabel("Normalized latency (s/token)", fontsize=8)
    handles = {
        label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [label for label, _, _ in SYSTEMS.values() if label in handles]
    columns = len(order) if num_columns > 2 else 2
    figure.legend([handles[label] for label in order], order, loc="outside upper center", ncols=columns)
    return figure


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
    handles = [Line2D([], [], color=color, linestyle=line, label=name) for name, line, color in KERNELS.values()]
    sizes = [Line2D([], [], color="#444444", linestyle="", marker=marker, markersize=3, label=f"Batch size {batch}")
             for batch, marker in MARKERS.items()]  # fmt: skip
    figure.legend(handles=[*handles, *sizes], loc="outside upper center", ncols=2)
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
