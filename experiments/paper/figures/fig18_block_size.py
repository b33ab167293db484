"""Figure 18: (a) latency of attention kernels, (b) end-to-end latency against block size."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from experiments.paper.figures.published import published_range
from experiments.paper.style import RC, new_figure

KERNELS = {
    "paper": ("Paper's design, paged", "-", "#d62728"),
    "contiguous": ("Contiguous", "--", "#2ca02c"),
    "paged": ("Ours, paged", "-", "#1f77b4"),
}
MARKERS = {8: "o", 32: "s"}
BAND = "#f5c6c6"
CURVES = {
    ("opt-13b sharegpt", "vllm"): ("ShareGPT", "#1f77b4", "o"),
    ("opt-13b alpaca", "vllm"): ("Alpaca", "#ff7f0e", "s"),
    ("opt-13b sharegpt", "our kernel"): ("ShareGPT, our kernel", "#9ecae1", "^"),
}


def draw(table: pd.DataFrame) -> Figure:
    """(a) as measured, and over contiguous memory, where the paper's own number is; (b) below."""
    with mpl.rc_context(RC):
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
        _legend(figure)
        blocks = figure.add_subplot(grid[1, :])
        means = table[table["figure"] == "fig18b"].groupby(["setting", "system", "block_size"])["simulated"].mean()
        for key, (label, color, marker) in CURVES.items():
            draw_curve(blocks, means[key], label, color, marker)
        blocks.set_xlabel("Block size\n(b) End-to-end latency, OPT-13B, A100")
        blocks.legend(loc="upper center")
        return figure


def _kernels(axes: Axes, times: pd.DataFrame, label: str) -> None:
    """A curve for each kernel and batch size."""
    contexts = times.index.get_level_values("context").unique().sort_values()
    for system, (_, line, color) in KERNELS.items():
        for batch, marker in MARKERS.items():
            if system in times:
                curve = times[system].xs(batch, level="batch").sort_index()
                axes.plot(curve.index, curve, line, color=color, marker=marker, markersize=3)
    axes.set_xticks(contexts, [f"{context:g}" for context in contexts])
    axes.set(xlabel="Context length\n(a) Kernels, H200", ylabel=label)


def _legend(figure: Figure) -> None:
    handles = [Line2D([], [], color=color, linestyle=line, label=name) for name, line, color in KERNELS.values()]
    sizes = [Line2D([], [], color="#444444", linestyle="", marker=marker, markersize=3, label=f"Batch size {batch}")
             for batch, marker in MARKERS.items()]  # fmt: skip
    figure.legend(handles=[*handles, *sizes], loc="outside upper center", ncols=2)


def draw_curve(axes: Axes, curve: pd.Series, label: str, color: str, marker: str) -> None:
    """Latency over block sizes, one tick a size."""
    axes.plot(curve.index, curve, color=color, marker=marker, markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve.index, [f"{size:g}" for size in curve.index])
    axes.set(ylabel="Normalized latency (s/token)")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
