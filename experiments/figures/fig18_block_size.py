"""Figure 18b: end-to-end latency against block size."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.style import RC, new_figure

LOOKS = {
    "opt-13b sharegpt": ("ShareGPT", "#1f77b4", "o"),
    "opt-13b alpaca": ("Alpaca", "#ff7f0e", "s"),
}
LIMIT = 1.0


def draw(table: pd.DataFrame) -> Figure:
    """Both traces over powers of two."""
    with mpl.rc_context(RC):
        figure = new_figure(3.4, 2.2)
        axes = figure.subplots()
        means = table.groupby(["setting", "block_size"])["simulated"].mean()
        for setting, (label, color, marker) in LOOKS.items():
            draw_curve(axes, means[setting], label, color, marker)
        axes.legend(loc="upper center")
        return figure


def draw_curve(axes: Axes, curve: pd.Series, label: str, color: str, marker: str) -> None:
    """Latency over block sizes, one tick a size."""
    axes.plot(curve.index, curve, color=color, marker=marker, markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve.index, [str(size) for size in curve.index])
    axes.minorticks_off()
    axes.set(xlabel="Block size", ylabel="Normalized latency (s/token)")
    axes.set_yscale("log")
