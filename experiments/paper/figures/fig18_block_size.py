"""Figure 18: (a) latency of attention kernels, (b) end-to-end latency against block size."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.paper.style import RC, new_figure

KERNELS = {"paged": ("Ours", "-", "#1f77b4"), "contiguous": ("Contiguous", "--", "#2ca02c"),
           "paper": ("Paper's design", ":", "#7f7f7f")}  # fmt: skip
LEGEND_ROOM = 1.45
MARKERS = {8: "o", 32: "s"}
CURVES = {
    ("opt-13b sharegpt", "vllm"): ("ShareGPT", "#1f77b4", "o"),
    ("opt-13b alpaca", "vllm"): ("Alpaca", "#ff7f0e", "s"),
    ("opt-13b sharegpt", "our kernel"): ("ShareGPT, our kernel", "#9ecae1", "^"),
}


def draw(table: pd.DataFrame) -> Figure:
    """Two panels, side by side."""
    with mpl.rc_context(RC):
        figure = new_figure(7.0, 2.4)
        kernels, blocks = figure.subplots(1, 2)
        _kernels(kernels, table[table["figure"] == "fig18a"])
        means = table[table["figure"] == "fig18b"].groupby(["setting", "system", "block_size"])["simulated"].mean()
        for key, (label, color, marker) in CURVES.items():
            draw_curve(blocks, means[key], label, color, marker)
        blocks.set_xlabel("Block size\n(b) End-to-end latency")
        blocks.legend(loc="upper center")
        return figure


def _kernels(axes: Axes, rows: pd.DataFrame) -> None:
    contexts = sorted(rows["context"].unique())
    for system, (label, line, color) in KERNELS.items():
        for batch, marker in MARKERS.items():
            curve = rows[(rows["system"] == system) & (rows["batch"] == batch)].sort_values("context")
            name = f"{label}, {batch}"
            axes.plot(curve["context"], curve["simulated"], line, color=color, marker=marker, markersize=3, label=name)
    axes.set_xticks(contexts, [f"{context:g}" for context in contexts])
    axes.set(xlabel="Context length\n(a) Attention kernels, H200", ylabel="Kernel latency (us)")
    axes.set_ylim(0, LEGEND_ROOM * rows["simulated"].max())
    axes.legend(fontsize=6, loc="upper left", ncols=3, title="Kernel, batch size", title_fontsize=6)


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
