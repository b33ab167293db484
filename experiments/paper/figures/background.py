"""What the evaluation starts from: the worth of a batch (Figure 1), lengths (Figure 11), servers (Table 1)."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.experiments.paper.scorecard import published
from testbed.experiments.runs.figure_style import HATCH_COLOR, KIND_COLORS, SYSTEMS, new_figure

BATCHING = {"existing": ("Existing systems", SYSTEMS["orca-max"][1], 5), "vllm": ("vLLM", SYSTEMS["vllm"][1], 2.5)}
DATA_SETS = {"sharegpt": "(a) ShareGPT", "alpaca": "(b) Alpaca"}
SIDES = {"input": "#2f78b7", "output": "#f07f1a"}
SERVER_ROWS = {
    "parameters_memory": ("Parameter size", "{:.0f} GiB"),
    "kv_memory": ("Memory for KV cache", "{:.0f} GiB"),
    "kv_slots": ("Max. # KV cache slots", "{:,.0f}"),
}


def fig1(table: pd.DataFrame) -> Figure:
    """Figure 1: left the parts of the GPU's memory, right memory and throughput against batch size."""
    figure = new_figure(height_in=3.0)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 2.2))
    _layout(figure.add_subplot(grid[:, 0]), table.iloc[0])
    memory = figure.add_subplot(grid[0, 1])
    throughput = figure.add_subplot(grid[1, 1], sharex=memory)
    memory.tick_params(labelbottom=False)
    for system, (label, color, size) in BATCHING.items():
        curve = table[table["system"] == system].drop_duplicates("batch")
        for axes, column in ((memory, "memory_gib"), (throughput, "tokens_per_s")):
            axes.plot(curve["batch"], curve[column], color=color, marker="o", markersize=size, label=label)
    memory.axhline(table["parameters_gib"].iloc[0], color="black", linestyle=":", linewidth=0.8, label="Parameters")
    memory.set(ylabel="Memory (GiB)", ylim=(20, 40))
    throughput.set(xlabel="Batch size (# requests)", ylabel="Throughput (token/s)", ylim=(0, None), xlim=(0, None))
    figure.legend(*memory.get_legend_handles_labels(), loc="outside upper right", ncols=3, columnspacing=0.8)
    return figure


def _layout(axes: Axes, row: pd.Series) -> None:
    total, parameters, cache = row["gpu_memory_gib"], row["parameters_gib"], row["kv_memory_gib"]
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


def fig11(table: pd.DataFrame) -> Figure:
    """Figure 11: input and output length distributions."""
    figure = new_figure(height_in=1.9)
    for axes, (setting, title) in zip(figure.subplots(1, 2), DATA_SETS.items(), strict=True):
        _lengths(axes, table[table["setting"] == setting])
        axes.set_xlabel(f"# Tokens\n{title}")
    figure.axes[0].set_ylabel("Density")
    return figure


def _lengths(axes: Axes, rows: pd.DataFrame) -> None:
    for side, color in SIDES.items():
        mean = rows.loc[rows["quantity"] == f"mean_{side}", "simulated"].iloc[0]
        bars = rows[rows["quantity"] == side]
        widths = bars["to"] - bars["from"]
        label = f"{side.capitalize()} (mean {mean:.2f})"
        axes.bar(bars["from"], bars["simulated"], widths, align="edge", color=color, alpha=0.6, label=label)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.yaxis.get_offset_text().set_fontsize(6)
    axes.margins(y=0.45)
    axes.legend(fontsize=6, loc="upper right", handlelength=1)


def table1(table: pd.DataFrame) -> Figure:
    """Table 1: models, their servers, and how many tokens fit the KV cache.

    A table of text; below our slots the paper's.
    """
    servers = table[table["figure"] == "table1"].pivot_table(
        index="quantity", columns="setting", values="simulated", sort=False
    )
    texts = [[form.format(servers.loc[k, name]) for name in servers.columns] for k, (_, form) in SERVER_ROWS.items()]
    theirs = published("table1").query("quantity == 'kv_slots'").set_index("setting")["published"]
    texts.append([f"{theirs[name]:,.0f}" for name in servers.columns])
    figure = new_figure(height_in=1.15)
    axes = figure.subplots()
    axes.axis("off")
    columns = [name.replace(" ", "\n", 1).upper().replace("X", "x") for name in servers.columns]
    labels = [*(label for label, _ in SERVER_ROWS.values()), "Published"]
    body = axes.table(texts, rowLabels=labels, colLabels=columns, loc="center")
    body.auto_set_font_size(False)
    body.set_fontsize(6.5)
    for (row, _), cell in body.get_celld().items():
        cell.set_linewidth(0.4)
        cell.set_height(0.34 if row == 0 else 0.2)
    return figure
