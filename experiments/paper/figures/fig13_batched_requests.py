"""Figure 13: average number of batched requests, the published bar beside ours."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.figures.published import COLOR, published
from experiments.paper.style import RC, SYSTEMS, new_figure

PANELS = {
    "opt-13b sharegpt 2 req/s": ("fig13a", "(a) ShareGPT"),
    "opt-13b alpaca 30 req/s": ("fig13b", "(b) Alpaca"),
}
WIDTH, APART = 0.4, 0.21


def draw(table: pd.DataFrame) -> Figure:
    """The two panels of the paper; what was run beside them stays in the table."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=3.5)
        for axes, (setting, (name, title)) in zip(figure.subplots(2, 1), PANELS.items(), strict=True):
            ours = table[table["setting"] == setting].groupby("system", sort=False)["simulated"].mean()
            theirs = published(name).groupby("system")["published"].mean()
            _panel(axes, ours, theirs.reindex(ours.index))
            axes.set_xlabel(title)
        figure.axes[0].bar([0], [0], color=COLOR, label="left, grey: published; right: simulated")
        figure.legend(loc="outside upper center", handlelength=1)
        figure.supylabel("# Batched requests", fontsize=8)
        return figure


def _panel(axes: Axes, ours: pd.Series, theirs: pd.Series) -> None:
    places = np.arange(len(ours))
    colors = [SYSTEMS[name][1] for name in ours.index]
    for shift, values, color in ((-APART, theirs, COLOR), (APART, ours, colors)):
        bars = axes.bar(places + shift, values, WIDTH, color=color)
        axes.bar_label(bars, [f"{value:.1f}" for value in values], fontsize=6, padding=1)
    axes.set_xticks(places, [SYSTEMS[name][0] for name in ours.index])
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.14)
