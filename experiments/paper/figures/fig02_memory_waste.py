"""Figure 2: the KV cache's memory by kind, one stacked bar a system."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.style import KIND_COLORS, KIND_LABELS, RC, SYSTEMS, new_figure

QUANTITIES = {
    "token_states": "token_states",
    "reservation": "reserved",
    "internal_fragmentation": "internal",
    "external_fragmentation_and_others": "external",
}
SMALLEST_LABEL = 3.0


def draw(table: pd.DataFrame) -> Figure:
    """Bars in the order of the table."""
    with mpl.rc_context(RC):
        shares = table.pivot_table(index="system", columns="quantity", values="simulated", sort=False)
        figure = new_figure(3.4, 2.4)
        axes = figure.subplots()
        labels = [SYSTEMS[name][0].replace(" ", "\n") for name in shares.index]
        bottom = pd.Series(0.0, index=shares.index)
        for quantity, kind in QUANTITIES.items():
            bars = axes.bar(labels, shares[quantity], 0.6, bottom, color=KIND_COLORS[kind], label=KIND_LABELS[kind])
            texts = [f"{value:.1f}" if value >= SMALLEST_LABEL else "" for value in shares[quantity]]
            axes.bar_label(bars, texts, label_type="center", fontsize=7)
            bottom += shares[quantity]
        axes.set(ylabel="KV cache usage (%)", ylim=(0, 100))
        axes.tick_params(axis="x", length=0)
        figure.legend(loc="outside upper center", ncols=2, columnspacing=1, handlelength=1)
        return figure
