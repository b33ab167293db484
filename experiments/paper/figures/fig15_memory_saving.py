"""Figure 15: memory saved by sharing, by number of sequences; the published bar beside ours."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.figures.published import COLOR, published
from experiments.paper.style import RC, SYSTEMS, new_figure

PANELS = {
    "parallel": ("fig15a", "(a) Parallel sampling", "# Output sequences"),
    "beam": ("fig15b", "(b) Beam search", "Beam width"),
}
WIDTHS = ("2", "4", "6")
WIDTH, APART = 0.4, 0.21


def draw(table: pd.DataFrame) -> Figure:
    """Two panels of bars, Alpaca."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=2.2)
        ours = table.groupby("setting")["simulated"].mean()
        for axes, (kind, (name, title, label)) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
            theirs = published(name).set_index("setting")["published"]
            settings = [f"opt-13b alpaca {kind} {width}" for width in WIDTHS]
            _bars(axes, theirs[settings], -APART, COLOR)
            _bars(axes, ours[settings], APART, SYSTEMS["vllm"][1])
            axes.set_xticks(range(len(WIDTHS)), WIDTHS)
            axes.set_xlabel(f"{label}\n{title}")
        figure.axes[0].bar([0], [0], color=COLOR, label="left, grey: published; right: simulated")
        figure.legend(loc="outside upper center", handlelength=1)
        figure.axes[0].set_ylabel("Memory saving (%)")
        return figure


def _bars(axes: Axes, savings: pd.Series, shift: float, color: str) -> None:
    bars = axes.bar(np.arange(len(savings)) + shift, savings, WIDTH, color=color)
    axes.bar_label(bars, fmt="%.1f", fontsize=5.5, padding=1)
    axes.margins(y=0.15)
