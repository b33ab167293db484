"""Figures beyond the paper: prefix caches, sessions over tiers, and KV groups."""

from collections.abc import Mapping, Sequence
from textwrap import fill

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from testbed.experiments.look.plots import HATCH_COLOR, KIND_COLORS, KIND_HATCHES, new_figure
from testbed.experiments.paper.studies.open_sessions import LIFE_COLUMNS, RULE_COLUMNS, compared
from testbed.experiments.paper.studies.prefix_cache import REPLAYS

ORDERS = {
    "belady": ("Belady (oracle)", "#222222", "--"),
    "lru": ("LRU", "#1f77b4", "-"),
    "fifo": ("FIFO", "#d62728", "-"),
    "lfu": ("LFU", "#e6b800", "-"),
    "arc": ("ARC", "#2ca02c", "-"),
    "cost_aware": ("Cost-aware", "#ff7f0e", "-"),
}


def tiers(table: pd.DataFrame, panels: Mapping[str, str]) -> Figure:
    """A row for each trace, a panel for each quantity, by its label; a curve a system, replays
    dashed or dotted.
    """
    traces = list(dict.fromkeys(table["trace"]))
    figure = new_figure(5.0, 2.3 * len(traces))
    sizes = sorted(set(table["dram_gib"]))
    for trace, row in zip(traces, figure.subplots(len(traces), 2, squeeze=False), strict=True):
        spaced = table[table["trace"] == trace].assign(
            dram_gib=lambda rows: rows["dram_gib"].map(sizes.index)
        )
        for axes, (quantity, label) in zip(row, panels.items(), strict=True):
            _curves(
                axes,
                spaced,
                "dram_gib",
                quantity,
                "system",
                dict(zip(REPLAYS, ("--", ":"), strict=True)),
            )
            axes.set_xticks(range(len(sizes)), [f"{size:,g}" for size in sizes])
            axes.set(
                xlabel="DRAM (GiB)",
                ylabel=label,
                ylim=(0, 1.08 * spaced[quantity].max()),
                title=trace,
            )
    curves = {
        str(line.get_label()): line for axes in figure.axes for line in axes.lines
    }  # not every trace has replays
    figure.legend(curves.values(), curves, loc="outside upper center", ncols=2)
    return figure


def store_rules(table: pd.DataFrame) -> Figure:
    """Blocks found, and latency beyond a run without a tier, by live set over DRAM and rule."""
    return _closed_loop(
        compared(table),
        "live_over_dram",
        "rule",
        RULE_COLUMNS,
        ["black"],
        xlabel="Live set over DRAM",
    )


def time_to_live(table: pd.DataFrame) -> Figure:
    """Mean job time and blocks found by time to live; the other systems are lines."""
    colors = [f"C{number}" for number in range(1, len(table))]
    looks = {"xlabel": "Time to live (s)", "xscale": "log"}
    return _closed_loop(table, "time_to_live_s", "system", LIFE_COLUMNS, colors, **looks)


def _closed_loop(
    table: pd.DataFrame,
    x: str,
    by: str,
    columns: Mapping[str, str],
    colors: Sequence[str],
    **looks: str,
) -> Figure:
    """A panel for each column, a curve for each `by`; rows without an x are horizontal lines."""
    figure = new_figure(5.0, 2.5)
    for axes, (quantity, label) in zip(
        figure.subplots(1, len(columns)), columns.items(), strict=True
    ):
        _curves(axes, table[table[x] > 0], x, quantity, by)
        for color, row in zip(colors, table[~(table[x] > 0)].to_dict("records"), strict=False):
            axes.axhline(row[quantity], linestyle=":", color=color, label=row[by])
        axes.set(ylabel=fill(label.capitalize(), 30), **looks)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _curves(
    axes: Axes, table: pd.DataFrame, x: str, y: str, by: str, lines: dict[str, str] | None = None
) -> None:
    for name, curve in table.groupby(by, sort=False):
        axes.plot(
            curve[x],
            curve[y],
            (lines or {}).get(str(name), "-"),
            marker="o",
            markersize=3,
            label=name,
        )


def mooncake(table: pd.DataFrame) -> Figure:
    """Hit rate of a prefix cache against its size in untimed replay, one curve an eviction
    order.
    """
    figure = new_figure(height_in=2.6)
    axes = figure.subplots()
    _orders(axes, table, "hit_rate", 100)
    axes.set(xlabel=f"Cache (blocks of {table['block_size'].iloc[0]} tokens)", xscale="log")
    axes.set(ylabel="Prompt blocks found (%)", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _orders(axes: Axes, table: pd.DataFrame, quantity: str, scale: float, marker: str = "") -> None:
    for order, (label, color, line) in ORDERS.items():
        curve = table[table["order"] == order]
        if len(curve):
            values = scale * curve[quantity]
            axes.plot(
                curve["num_blocks"],
                values,
                line,
                color=color,
                label=label,
                marker=marker,
                markersize=3,
            )


def agent_sessions(table: pd.DataFrame, panels: Mapping[str, tuple[float, str]]) -> Figure:
    """Quantities of agentic sessions, each with its factor and label, by size of the pool; one
    curve an order.
    """
    figure = new_figure(7.0, 2.6)
    every = figure.subplots(1, len(panels))
    size = int(table["block_size"].iloc[0])
    sizes = sorted(set(table["num_blocks"]))
    spaced = table.assign(num_blocks=table["num_blocks"].map(sizes.index))
    for axes, (quantity, (scale, label)) in zip(every, panels.items(), strict=True):
        _orders(axes, spaced, quantity, scale, marker="o")
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.tick_params(which="minor", bottom=False, left=False)
        axes.set(xlabel=f"Pool (blocks of {size} tokens)", ylabel=label)
    for axes in every[
        1:
    ]:  # a pool that holds all sessions answers fifty times as soon as a small one
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(
        *every[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ORDERS)
    )
    return figure


def groups(table: pd.DataFrame, parts: Mapping[str, str]) -> Figure:
    """KV groups: the parts of a full pool by model and page rule; a panel for each trace."""
    traces = list(dict.fromkeys(table["trace"]))
    rules = list(dict.fromkeys(table["rule"]))
    figure = new_figure(6.5, 2.4 * len(traces))
    panels = figure.subplots(len(traces), 1, squeeze=False)[:, 0]
    for trace, axes in zip(traces, panels, strict=True):
        _pool_bars(axes, table[table["trace"] == trace], rules, parts)
        axes.set(ylabel="Pool (%)", ylim=(0, 100), title=trace)
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(
        handles[: len(parts)], labels[: len(parts)], loc="outside upper center", ncols=len(parts)
    )
    return figure


def _pool_bars(
    axes: Axes, table: pd.DataFrame, rules: Sequence[str], parts: Mapping[str, str]
) -> None:
    """A bar for each model and page rule: the parts of its pool in percent, one on the other."""
    means = table.groupby(["model", "rule"], sort=False).mean(numeric_only=True)
    models = list(dict.fromkeys(means.index.get_level_values("model")))
    kinds = ("token_states", "internal")
    for (model, rule), row in means.iterrows():
        from_middle = rules.index(rule) - (len(rules) - 1) / 2
        place = models.index(model) + from_middle / (len(rules) + 1)
        bottom = 0.0
        for (part, label), kind in zip(parts.items(), kinds, strict=True):
            height = 100 * row[part] / row["pool_gib"]
            axes.bar(
                place,
                height,
                0.9 / (len(rules) + 1),
                bottom,
                label=label,
                facecolor=KIND_COLORS[kind],
                hatch=KIND_HATCHES[kind],
                edgecolor=HATCH_COLOR,
                linewidth=0,
            )
            bottom += height
        axes.annotate(rule, (place, 2), rotation=90, ha="center", fontsize=6, color="white")
    axes.set_xticks(range(len(models)), models)
