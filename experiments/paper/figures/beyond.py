"""Figures beyond the paper: prefix caches by eviction order, memory below the GPUs, pages of several KV groups."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from testbed.experiments.paper.studies.store_rules import COLUMNS, NO_TIER, compared
from testbed.experiments.runs.figure_style import new_figure

ORDERS = {
    "belady": ("Belady (oracle)", "#222222", "--"),
    "lru": ("LRU", "#1f77b4", "-"),
    "fifo": ("FIFO", "#d62728", "-"),
    "lfu": ("LFU", "#e6b800", "-"),
    "arc": ("ARC", "#2ca02c", "-"),
    "s3_fifo": ("S3-FIFO", "#9467bd", "-"),
    "cost_aware": ("Cost-aware", "#ff7f0e", "-"),
}
SESSION_PANELS = {
    "hit_rate": (100, "Prompt tokens found (%)"),
    "mean_ttft_s": (1, "Mean TTFT (s)"),
    "p90_ttft_s": (1, "p90 TTFT (s)"),
}
TIER_PANELS = {"found_percent": "Prompt blocks found (%)", "mean_ttft_s": "Mean TTFT (s)"}
PARTS = {"useful_gib": ("read by later tokens", "C0"), "wasted_gib": ("held and not read", "C3")}
POINTS: dict[str, Any] = {"marker": "o", "markersize": 3}


def mooncake(table: pd.DataFrame) -> Figure:
    """Hit rate and throughput of a prefix cache against its size, one curve an eviction order.

    Above the untimed replay, where the oracle is a bound; below the timed runs.
    """
    figure = new_figure(height_in=4.6)
    replay, timed = figure.subplots(2, 1)
    size = int(table["block_size"].iloc[0])
    _orders(replay, table[table["kind"] == "replay"], "hit_rate", 100)
    replay.set(xlabel=f"Cache (blocks of {size} tokens)", ylabel="Prompt blocks found (%)", ylim=(0, None))
    replay.set_title("Untimed replay")
    _orders(timed, table[table["kind"] == "timed"], "requests_per_s", 1, **POINTS)
    for axes in (replay, timed):
        axes.set_xscale("log")
    timed.set(xlabel=f"KV pool (blocks of {size} tokens)", ylabel="Throughput (requests/s)")
    sizes = sorted(set(table.loc[table["kind"] == "timed", "num_blocks"]))
    timed.set_xticks(sizes, [f"{size:,}" for size in sizes])
    timed.minorticks_off()
    timed.set_title("Timed runs, to the last request")
    return _with_legend(figure, replay, 3)


def agent_sessions(table: pd.DataFrame) -> Figure:
    """Tokens found and time to first token of agentic sessions against the size of the pool, one curve an order."""
    figure = new_figure(7.0, 2.6)
    panels = figure.subplots(1, 3)
    size = int(table["block_size"].iloc[0])
    sizes = sorted(set(table["num_blocks"]))
    spaced = table.assign(num_blocks=table["num_blocks"].map(sizes.index))
    for axes, (quantity, (scale, label)) in zip(panels, SESSION_PANELS.items(), strict=True):
        _orders(axes, spaced, quantity, scale, **POINTS)
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.tick_params(which="minor", bottom=False, left=False)
        axes.set(xlabel=f"Pool (blocks of {size} tokens)", ylabel=label)
    for axes in panels[1:]:  # a pool that holds all sessions answers fifty times as soon as a small one
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return _with_legend(figure, panels[0], len(ORDERS))


def _orders(axes: Axes, table: pd.DataFrame, quantity: str, scale: float, **points: Any) -> None:
    """One curve an order, by `num_blocks`."""
    sizes = sorted(set(table["num_blocks"]))
    for order, (label, color, line) in ORDERS.items():
        curve = table[table["order"] == order].groupby("num_blocks")[quantity].mean().reindex(sizes)
        if curve.notna().any():
            axes.plot(curve.index, scale * curve, line, color=color, label=label, **points)


def _with_legend(figure: Figure, axes: Axes, columns: int) -> Figure:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=columns)
    return figure


def tiers(table: pd.DataFrame) -> Figure:
    """A row for each trace: blocks found and time to first token, one curve a system; the replay is dashed."""
    traces = list(dict.fromkeys(table["trace"]))
    figure = new_figure(5.0, 2.3 * len(traces))
    sizes = sorted(set(table["dram_gib"]))
    for trace, row in zip(traces, figure.subplots(len(traces), 2, squeeze=False), strict=True):
        for axes, (quantity, label) in zip(row, TIER_PANELS.items(), strict=True):
            for system, curve in table[table["trace"] == trace].groupby("system", sort=False):
                line = "--" if system == "replay" else "-"
                axes.plot(curve["dram_gib"].map(sizes.index), curve[quantity], line, label=system, **POINTS)
            axes.set_xticks(range(len(sizes)), [f"{size:,g}" for size in sizes])
            axes.set(xlabel="DRAM (GiB)", ylabel=label, ylim=(0, None), title=trace)
    return _with_legend(figure, row[0], 3)


def store_rules(table: pd.DataFrame) -> Figure:
    """Blocks found, and latency beyond that without a tier, by what the sessions need over the DRAM; a curve a rule."""
    figure = new_figure(5.0, 2.5)
    curves = compared(table)
    for axes, (quantity, label) in zip(figure.subplots(1, 2), COLUMNS.items(), strict=True):
        for rule, curve in curves.groupby("rule", sort=False):
            axes.plot(curve["live_over_dram"], curve[quantity], "-", label=rule, **POINTS)
        alone = 0.0 if quantity == "slower_s" else table.loc[table["rule"] == NO_TIER, quantity].iloc[0]
        axes.axhline(alone, linestyle=":", color="black", label=NO_TIER)
        axes.set(xlabel="Live set over DRAM", ylabel=label.capitalize())
    return _with_legend(figure, axes, 3)


def groups(table: pd.DataFrame) -> Figure:
    """What a pool full of sequences holds: a panel for each trace, a bar for each model and rule in percent of it."""
    traces, rules = (list(dict.fromkeys(table[name])) for name in ("trace", "rule"))
    figure = new_figure(6.5, 2.4 * len(traces))
    width = 1 / (len(rules) + 1)
    for trace, axes in zip(traces, figure.subplots(len(traces), 1, squeeze=False)[:, 0], strict=True):
        rows = table[table["trace"] == trace].groupby(["model", "rule"], sort=False).mean(numeric_only=True)
        models = list(dict.fromkeys(rows.index.get_level_values("model")))
        for (model, rule), row in rows.iterrows():
            place, bottom = models.index(model) + (rules.index(rule) - (len(rules) - 1) / 2) * width, 0.0
            for part, (label, color) in PARTS.items():
                height = 100 * row[part] / row["pool_gib"]
                axes.bar(place, height, 0.9 * width, bottom, color=color, label=label)
                bottom += height
            axes.annotate(rule, (place, 2), rotation=90, ha="center", fontsize=5, color="white")
        axes.set_xticks(range(len(models)), models)
        axes.set(ylabel="Pool (%)", ylim=(0, 100), title=trace)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[: len(PARTS)], labels[: len(PARTS)], loc="outside upper center", ncols=len(PARTS))
    return figure
