"""Figure 15: memory saved by sharing, by number of sequences."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.style import RC, SYSTEMS, new_figure

PANELS = {"parallel": ("(a) Parallel sampling", "# Output sequences"), "beam": ("(b) Beam search", "Beam width")}
WIDTHS = ("2", "4", "6")


def draw(table: pd.DataFrame) -> Figure:
    """Two panels of bars, Alpaca."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=1.9)
        savings = table.groupby("setting")["simulated"].mean()
        for axes, (kind, (title, label)) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
            values = [savings[f"opt-13b alpaca {kind} {width}"] for width in WIDTHS]
            bars = axes.bar(WIDTHS, values, 0.6, color=SYSTEMS["vllm"][1])
            axes.bar_label(bars, fmt="%.2f", fontsize=6.5, padding=1)
            axes.margins(y=0.15)
            axes.set_xlabel(f"{label}\n{title}")
        figure.axes[0].set_ylabel("Memory saving (%)")
        return figure
