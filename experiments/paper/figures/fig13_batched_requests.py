"""Figure 13: average number of batched requests, one bar a system, one panel a trace."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.style import RC, SYSTEMS, new_figure

PANELS = {
    "opt-13b sharegpt 2 req/s": "(a) ShareGPT",
    "opt-13b alpaca 30 req/s": "(b) Alpaca",
}


def draw(table: pd.DataFrame) -> Figure:
    """The two panels of the paper; what was run beside them stays in the table."""
    with mpl.rc_context(RC):
        figure = new_figure(3.4, 2.0)
        for axes, (setting, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
            _panel(axes, table[table["setting"] == setting].groupby("system", sort=False)["simulated"].mean())
            axes.set_xlabel(title)
        figure.supylabel("# Batched requests", fontsize=8)
        return figure


def _panel(axes: Axes, means: pd.Series) -> None:
    labels = [SYSTEMS[name][0].replace(" ", "\n") for name in means.index]
    bars = axes.bar(labels, means, 0.65, color=[SYSTEMS[name][1] for name in means.index])
    axes.bar_label(bars, fmt="%.2f", fontsize=6.5, padding=1)
    axes.tick_params(axis="x", length=0, labelsize=5.5)
    axes.margins(y=0.12)
