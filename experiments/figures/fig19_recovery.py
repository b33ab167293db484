"""Figure 19b: end-to-end latency with recovery by recompute and by swap, against block size."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.figures.fig18_block_size import draw_curve
from experiments.style import RC, new_figure

LOOKS = {
    "recompute": ("Recompute", "#1f77b4", "o"),
    "swap": ("Swap", "#ff7f0e", "s"),
    "fused swap": ("Swap, fused kernel", "#2ca02c", "^"),
}


def draw(table: pd.DataFrame) -> Figure:
    """All ways of recovery over powers of two."""
    with mpl.rc_context(RC):
        figure = new_figure(3.4, 2.2)
        axes = figure.subplots()
        means = table.groupby(["system", "block_size"])["simulated"].mean()
        for system, (label, color, marker) in LOOKS.items():
            draw_curve(axes, means[system], label, color, marker)
        axes.legend(loc="upper center")
        return figure
