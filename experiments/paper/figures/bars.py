"""Figures 2, 13 and 15: pairs of bars, the published one and ours."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.experiments.paper.scorecard import published
from testbed.experiments.runs.figure_style import (
    HATCH_COLOR,
    KIND_COLORS,
    KIND_HATCHES,
    KIND_LABELS,
    SYSTEMS,
    new_figure,
)

SHARES = {
    "token_states": "token_states",
    "reservation": "reserved",
    "internal_fragmentation": "internal",
    "external_fragmentation_and_others": "external",
}
WASTE = "all_waste"  # what the paper gives of vLLM instead of the three kinds
SMALLEST_LABEL = 6.0
BATCHES = {"opt-13b sharegpt 2 req/s": ("fig13a", "(a) ShareGPT"), "opt-13b alpaca 30 req/s": ("fig13b", "(b) Alpaca")}
SAVINGS = {
    "parallel": ("fig15a", "(a) Parallel sampling", "# Output sequences"),
    "beam": ("fig15b", "(b) Beam search", "Beam width"),
}
WIDTHS = ("2", "4", "6")
WIDTH, APART = 0.4, 0.21
PUBLISHED_COLOR = "#c9ccd1"


def fig2(table: pd.DataFrame) -> Figure:
    """Figure 2: where the KV cache's memory goes, by kind; the published bar and ours.

    Two bars a system, in the order of the table: the paper's are pale.
    """
    ours = table.pivot_table(index="system", columns="quantity", values="simulated", sort=False)
    theirs = published("fig2").pivot_table(index="system", columns="quantity", values="published")
    figure = new_figure(height_in=2.7)
    axes = figure.subplots()
    _stacks(axes, theirs.reindex(ours.index), -APART, 0.5)
    _stacks(axes, ours, APART, 1.0)
    axes.set_xticks(range(len(ours)), [SYSTEMS[name][0].replace(" ", "\n") for name in ours.index])
    axes.set(ylabel="KV cache usage (%)", ylim=(0, 100), xlabel="left, pale: published; right: simulated")
    axes.tick_params(axis="x", length=0)
    handles, labels = axes.get_legend_handles_labels()
    kinds = dict(zip(labels[-len(SHARES) :], handles[-len(SHARES) :], strict=True))
    figure.legend(kinds.values(), kinds, loc="outside upper center", ncols=2, columnspacing=1, handlelength=1)
    return figure


def _stacks(axes: Axes, shares: pd.DataFrame, shift: float, alpha: float) -> None:
    """One stacked bar a system; kinds that were published as one sum are drawn as the last kind."""
    places = [i + shift for i in range(len(shares))]
    bottom = pd.Series(0.0, index=shares.index)
    for quantity, kind in SHARES.items():
        values = shares[quantity].fillna(0)
        if kind == "external":
            values = values.where(shares[quantity].notna(), shares[WASTE])
        bars = axes.bar(
            places, values, WIDTH, bottom, linewidth=0, edgecolor=HATCH_COLOR, color=KIND_COLORS[kind],
            label=KIND_LABELS[kind], hatch=KIND_HATCHES[kind], alpha=alpha,
        )  # fmt: skip
        texts = [f"{value:.1f}" if value >= SMALLEST_LABEL else "" for value in values]
        for text in axes.bar_label(bars, texts, label_type="center", fontsize=6.5):
            text.set_bbox(
                {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6} if text.get_text() else None
            )
        bottom += values


def fig13(table: pd.DataFrame) -> Figure:
    """Figure 13: average number of batched requests, the published bar and ours.

    The two panels of the paper; further runs are in the table only.
    """
    figure = new_figure(height_in=3.5)
    for axes, (setting, (name, title)) in zip(figure.subplots(2, 1), BATCHES.items(), strict=True):
        ours = table[table["setting"] == setting].groupby("system", sort=False)["simulated"].mean()
        theirs = published(name).groupby("system")["published"].mean().reindex(ours.index)
        _bars(axes, theirs, -APART, PUBLISHED_COLOR, 6)
        _bars(axes, ours, APART, [SYSTEMS[name][1] for name in ours.index], 6)
        axes.set_xticks(range(len(ours)), [SYSTEMS[name][0] for name in ours.index])
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.14)
        axes.set_xlabel(title)
    _legend(figure)
    figure.supylabel("# Batched requests", fontsize=8)
    return figure


def fig15(table: pd.DataFrame) -> Figure:
    """Figure 15: memory saved by sharing, by number of sequences; the published bar and ours."""
    figure = new_figure(height_in=2.2)
    ours = table.groupby("setting")["simulated"].mean()
    for axes, (kind, (name, title, label)) in zip(figure.subplots(1, 2), SAVINGS.items(), strict=True):
        settings = [f"opt-13b alpaca {kind} {width}" for width in WIDTHS]
        _bars(axes, published(name).set_index("setting")["published"][settings], -APART, PUBLISHED_COLOR, 4.8)
        _bars(axes, ours[settings], APART, SYSTEMS["vllm"][1], 4.8)
        axes.set_xticks(range(len(WIDTHS)), WIDTHS)
        axes.margins(y=0.15)
        axes.set_xlabel(f"{label}\n{title}")
    _legend(figure)
    figure.axes[0].set_ylabel("Memory saving (%)")
    return figure


def _bars(axes: Axes, values: pd.Series, shift: float, color: str | list[str], fontsize: float) -> None:
    bars = axes.bar(np.arange(len(values)) + shift, values, WIDTH, color=color)
    axes.bar_label(bars, fmt="%.1f", fontsize=fontsize, padding=1)


def _legend(figure: Figure) -> None:
    figure.axes[0].bar([0], [0], color=PUBLISHED_COLOR, label="left, grey: published; right: simulated")
    figure.legend(loc="outside upper center", handlelength=1)
