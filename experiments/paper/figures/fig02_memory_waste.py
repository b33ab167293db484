"""Figure 2: where the KV cache's memory goes, by kind; the published bar beside ours."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.figures.published import published
from experiments.paper.style import KIND_COLORS, KIND_LABELS, RC, SYSTEMS, new_figure

QUANTITIES = {
    "token_states": "token_states",
    "reservation": "reserved",
    "internal_fragmentation": "internal",
    "external_fragmentation_and_others": "external",
}
WASTE = "all_waste"  # what the paper gives of vLLM instead of the three kinds
SMALLEST_LABEL = 6.0
WIDTH, APART = 0.4, 0.21


def draw(table: pd.DataFrame) -> Figure:
    """Two bars a system, in the order of the table: the paper's with hatching, ours without."""
    with mpl.rc_context(RC):
        ours = table.pivot_table(index="system", columns="quantity", values="simulated", sort=False)
        theirs = published("fig2").pivot_table(index="system", columns="quantity", values="published")
        figure = new_figure(height_in=2.7)
        axes = figure.subplots()
        _bars(axes, theirs.reindex(ours.index), -APART, "//////")
        _bars(axes, ours, APART, "")
        axes.set_xticks(range(len(ours)), [SYSTEMS[name][0].replace(" ", "\n") for name in ours.index])
        axes.set(ylabel="KV cache usage (%)", ylim=(0, 100), xlabel="left, hatched: published; right: simulated")
        axes.tick_params(axis="x", length=0)
        handles, labels = axes.get_legend_handles_labels()
        kinds = dict(zip(labels[-len(QUANTITIES) :], handles[-len(QUANTITIES) :], strict=True))
        figure.legend(kinds.values(), kinds, loc="outside upper center", ncols=2, columnspacing=1, handlelength=1)
        return figure


def _bars(axes: Axes, shares: pd.DataFrame, shift: float, hatch: str) -> None:
    """One stacked bar a system; kinds that were published as one sum are drawn as the last kind."""
    places = [i + shift for i in range(len(shares))]
    bottom = pd.Series(0.0, index=shares.index)
    for quantity, kind in QUANTITIES.items():
        values = shares[quantity].fillna(0)
        if kind == "external":
            values = values.where(shares[quantity].notna(), shares[WASTE])
        looks = {"color": KIND_COLORS[kind], "label": KIND_LABELS[kind], "hatch": hatch, "edgecolor": "#ffffff80"}
        bars = axes.bar(places, values, WIDTH, bottom, linewidth=0, **looks)
        texts = [f"{value:.1f}" if value >= SMALLEST_LABEL else "" for value in values]
        axes.bar_label(bars, texts, label_type="center", fontsize=6.5)
        bottom += values
