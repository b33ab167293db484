"""Figure 11: input and output length distributions."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.style import RC, new_figure

TITLES = {"sharegpt": "(a) ShareGPT", "alpaca": "(b) Alpaca"}
COLORS = {"input": "#1f77b4", "output": "#ff7f0e"}


def draw(table: pd.DataFrame) -> Figure:
    """One panel a data set, inputs and outputs over each other."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=1.9)
        for axes, (setting, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
            _panel(axes, table[table["setting"] == setting])
            axes.set_xlabel(f"# Tokens\n{title}")
        figure.axes[0].set_ylabel("Density")
        return figure


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    for side, color in COLORS.items():
        mean = rows.loc[rows["quantity"] == f"mean_{side}", "simulated"].iloc[0]
        bars = rows[rows["quantity"] == side]
        widths = bars["to"] - bars["from"]
        label = f"{side.capitalize()} (mean {mean:.2f})"
        axes.bar(bars["from"], bars["simulated"], widths, align="edge", color=color, alpha=0.6, label=label)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.yaxis.get_offset_text().set_fontsize(6)
    axes.margins(y=0.45)
    axes.legend(fontsize=6, loc="upper right", handlelength=1)
