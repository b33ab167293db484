"""Figures 1, 2, 11, 13, 15 and Table 1: bars, the published ones next to ours.

Colours, titles and labels of one figure alone are in its config, under `looks`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.experiments.look.plots import (
    HATCH_COLOR,
    KIND_COLORS,
    KIND_HATCHES,
    SYSTEMS,
    new_figure,
)
from testbed.experiments.look.run_charts import KIND_LABELS
from testbed.experiments.paper.scorecard import published
from testbed.experiments.paper.studies.averages import SHARES

BATCHING = {
    "existing": ("Existing systems", SYSTEMS["orca-max"][1], 5),
    "vllm": ("vLLM", SYSTEMS["vllm"][1], 2.5),
}
LAYOUT = ["gpu_memory_gib", "parameters_gib", "kv_memory_gib"]
WASTE = "all_waste"  # what the paper gives of vLLM instead of the three kinds
SMALLEST_LABEL = 6.0
WIDTH, APART = 0.4, 0.21
PUBLISHED_COLOR = "#c9ccd1"


def fig1(table: pd.DataFrame) -> Figure:
    """Figure 1: left the parts of the GPU's memory, right memory and throughput against batch
    size.
    """
    figure = new_figure(height_in=3.0)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 2.2))
    _memory_parts(figure.add_subplot(grid[:, 0]), *table.iloc[0][LAYOUT])
    memory = figure.add_subplot(grid[0, 1])
    throughput = figure.add_subplot(grid[1, 1], sharex=memory)
    memory.tick_params(labelbottom=False)
    _batching_curves(memory, throughput, table)
    figure.legend(
        *memory.get_legend_handles_labels(), loc="outside upper right", ncols=3, columnspacing=0.8
    )
    return figure


def _memory_parts(axes: Axes, total: float, parameters: float, cache: float) -> None:
    """One bar of the GPU's memory (GiB): parameters, KV cache, and the rest."""
    parts = {
        "Parameters": (parameters, "white", "black"),
        "KV cache": (cache, BATCHING["vllm"][1], "white"),
        "Others": (total - parameters - cache, KIND_COLORS["external"], "black"),
    }
    bottom = 0.0
    for label, (size, color, ink) in parts.items():
        axes.bar(0, size, 0.8, bottom, color=color, edgecolor=HATCH_COLOR, linewidth=0.6)
        text = f"{label}, {100 * size / total:.0f}%\n{size:.1f} GiB"
        axes.text(0, bottom + size / 2, text, fontsize=5.5, ha="center", va="center", color=ink)
        bottom += size
    axes.set(xticks=[], ylabel="GPU memory (GiB)", ylim=(0, total))


def _batching_curves(memory: Axes, throughput: Axes, table: pd.DataFrame) -> None:
    """Memory and throughput of each system against its batch size."""
    for system, (label, color, size) in BATCHING.items():
        curve = table[table["system"] == system].drop_duplicates("batch")
        for axes, column in ((memory, "memory_gib"), (throughput, "tokens_per_s")):
            axes.plot(
                curve["batch"], curve[column], color=color, marker="o", markersize=size, label=label
            )
    memory.axhline(
        table["parameters_gib"].iloc[0],
        color="black",
        linestyle=":",
        linewidth=0.8,
        label="Parameters",
    )
    memory.set(ylabel="Memory (GiB)", ylim=(20, 40))
    throughput.set(
        xlabel="Batch size (# requests)",
        ylabel="Throughput (token/s)",
        ylim=(0, None),
        xlim=(0, None),
    )


def fig11(table: pd.DataFrame, titles: Mapping[str, str], sides: Mapping[str, str]) -> Figure:
    """Figure 11: input and output length distributions; a title for each setting, a colour for each
    side.
    """
    figure = new_figure(height_in=1.9)
    for axes, (setting, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        rows = table[table["setting"] == setting]
        for side, color in sides.items():
            mean = rows.loc[rows["quantity"] == f"mean_{side}", "simulated"].iloc[0]
            bars = rows[rows["quantity"] == side]
            widths, label = bars["to"] - bars["from"], f"{side.capitalize()} (mean {mean:.2f})"
            axes.bar(
                bars["from"],
                bars["simulated"],
                widths,
                align="edge",
                color=color,
                alpha=0.6,
                label=label,
            )
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        axes.yaxis.get_offset_text().set_fontsize(6)
        axes.margins(y=0.45)
        axes.legend(fontsize=6, loc="upper right", handlelength=1)
        axes.set_xlabel(f"# Tokens\n{title}")
    figure.axes[0].set_ylabel("Density")
    return figure


def table1(table: pd.DataFrame, rows: Mapping[str, tuple[str, str]]) -> Figure:
    """Table 1: models, their servers, and how many tokens fit the KV cache. rows: label and form of
    each.

    A table of text; below our slots the paper's.
    """
    servers = table[table["figure"] == "table1"].pivot_table(
        index="quantity", columns="setting", values="simulated", sort=False
    )
    texts = [
        [form.format(servers.loc[k, name]) for name in servers.columns]
        for k, (_, form) in rows.items()
    ]
    theirs = published("table1").query("quantity == 'kv_slots'").set_index("setting")["published"]
    texts.append([f"{theirs[name]:,.0f}" for name in servers.columns])
    figure = new_figure(height_in=1.15)
    axes = figure.subplots()
    axes.axis("off")
    columns = [name.replace(" ", "\n", 1).upper().replace("X", "x") for name in servers.columns]
    labels = [*(label for label, _ in rows.values()), "Published"]
    body = axes.table(texts, rowLabels=labels, colLabels=columns, loc="center")
    body.auto_set_font_size(False)
    body.set_fontsize(6.5)
    for (row, _), cell in body.get_celld().items():
        cell.set_linewidth(0.4)
        cell.set_height(0.34 if row == 0 else 0.2)
    return figure


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
    axes.set(
        ylabel="KV cache usage (%)", ylim=(0, 100), xlabel="left, pale: published; right: simulated"
    )
    axes.tick_params(axis="x", length=0)
    handles, labels = axes.get_legend_handles_labels()
    kinds = dict(zip(labels[-len(SHARES) :], handles[-len(SHARES) :], strict=True))
    figure.legend(
        kinds.values(), kinds, loc="outside upper center", ncols=2, columnspacing=1, handlelength=1
    )
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
            places,
            values,
            WIDTH,
            bottom,
            linewidth=0,
            edgecolor=HATCH_COLOR,
            color=KIND_COLORS[kind],
            label=KIND_LABELS[kind],
            hatch=KIND_HATCHES[kind],
            alpha=alpha,
        )
        texts = [f"{value:.1f}" if value >= SMALLEST_LABEL else "" for value in values]
        for text in axes.bar_label(bars, texts, label_type="center", fontsize=6.5):
            text.set_bbox(
                {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6}
                if text.get_text()
                else None
            )
        bottom += values


def fig13(table: pd.DataFrame, panels: Mapping[str, tuple[str, str]]) -> Figure:
    """Figure 13: average number of batched requests, the published bar and ours.

    A panel's setting, figure and title: the two of the paper; further runs are in the table only.
    """
    figure = new_figure(height_in=3.5)
    for axes, (setting, (name, title)) in zip(figure.subplots(2, 1), panels.items(), strict=True):
        ours = table[table["setting"] == setting].groupby("system", sort=False)["simulated"].mean()
        theirs = published(name).groupby("system")["published"].mean().reindex(ours.index)
        names, colors, _ = zip(*map(SYSTEMS.__getitem__, ours.index), strict=True)
        _beside(axes, theirs, ours, names, colors, 6)
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.14)
        axes.set_xlabel(title)
    _legend(figure)
    figure.supylabel("# Batched requests", fontsize=8)
    return figure


def fig15(
    table: pd.DataFrame, panels: Mapping[str, tuple[str, str]], widths: Sequence[str]
) -> Figure:
    """Figure 15: memory saved by sharing, by number of sequences; the published bar and ours.

    A panel's settings before the number, figure and title.
    """
    figure = new_figure(height_in=2.2)
    ours = table.groupby("setting")["simulated"].mean()
    for axes, (setting, (name, title)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        settings = [f"{setting} {width}" for width in widths]
        theirs = published(name).set_index("setting")["published"]
        _beside(axes, theirs[settings], ours[settings], widths, SYSTEMS["vllm"][1], 4.8)
        axes.margins(y=0.15)
        axes.set_xlabel(title)
    _legend(figure)
    figure.axes[0].set_ylabel("Memory saving (%)")
    return figure


def _beside(
    axes: Axes,
    theirs: pd.Series,
    ours: pd.Series,
    labels: Sequence[str],
    color: str | Sequence[str],
    size: float,
) -> None:
    for values, shift, shown in ((theirs, -APART, PUBLISHED_COLOR), (ours, APART, color)):
        bars = axes.bar(np.arange(len(values)) + shift, values, WIDTH, color=shown)
        axes.bar_label(bars, fmt="%.1f", fontsize=size, padding=1)
    axes.set_xticks(range(len(labels)), labels)


def _legend(figure: Figure) -> None:
    figure.axes[0].bar(
        [0], [0], color=PUBLISHED_COLOR, label="left, grey: published; right: simulated"
    )
    figure.legend(loc="outside upper center", handlelength=1)
