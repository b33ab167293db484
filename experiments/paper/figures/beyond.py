"""Figures beyond the paper: prefix caches, sessions over tiers, KV groups, fleets, speculation."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from testbed.experiments.look.pages.page import Chart, Series
from testbed.experiments.look.plots import (
    HATCH_COLOR,
    KIND_COLORS,
    KIND_HATCHES,
    figure_of,
    new_figure,
)
from testbed.experiments.paper.studies.global_cache import RATIO, ratios
from testbed.experiments.paper.studies.open_sessions import LIFE_COLUMNS, RULE_COLUMNS, compared
from testbed.experiments.paper.studies.prefix_cache import BELADY
from testbed.experiments.paper.studies.routers import means
from testbed.experiments.paper.studies.speculation_study import errors_without_memory, speed_ups

# Of each error without the drafter's memory: its label, and the factor to the label's unit.
ERRORS = {
    "batch": ("Error of the batch (%)", 100),
    "throughput": ("Error of tokens/s (%)", 100),
    "preemptions missed": ("Preemptions missed", 1),
}


def curves(
    table: pd.DataFrame, x: str, by: str, panels: Mapping[str, str], x_label: str, **looks: Any
) -> list[Chart]:
    """A chart for each panel, which is a column and its label; a curve for each value of `by`."""
    groups = [(str(name), rows) for name, rows in table.groupby(by, sort=False)]
    return [
        Chart(
            "",
            x_label,
            label,
            [Series(name, rows[x], rows[column]) for name, rows in groups],
            markers=True,
            **looks,
        )
        for column, label in panels.items()
    ]


def by_order(table: pd.DataFrame, panels: Mapping[str, str], about: str) -> list[Chart]:
    """Charts by number of blocks, one curve an eviction order; hit_rate is in percent."""
    size = table["block_size"].iloc[0]
    named = table.assign(
        order=table["order"].replace(BELADY, f"{BELADY} (oracle)"),
        hit_rate=100 * table["hit_rate"],
    )
    return curves(
        named, "num_blocks", "order", panels, f"{about} (blocks of {size} tokens)", log_x=True
    )


def mooncake(table: pd.DataFrame) -> Figure:
    """Hit rate of a prefix cache against its size in untimed replay."""
    return figure_of(by_order(table, {"hit_rate": "Prompt blocks found (%)"}, "Cache"), columns=1)


def agent_sessions(table: pd.DataFrame, panels: Mapping[str, str]) -> Figure:
    """Quantities of agentic sessions by size of the pool; a pool that holds all sessions answers
    fifty times as soon as a small one.
    """
    charts = by_order(table, panels, "Pool")
    return figure_of([chart._replace(log_y="(s)" in chart.y_label) for chart in charts], columns=3)


def tiers(table: pd.DataFrame, panels: Mapping[str, str]) -> Figure:
    """A row for each trace, a panel for each quantity; a curve a system or replay."""
    charts = list[Chart]()
    for trace, rows in table.groupby("trace", sort=False):
        labels = {column: f"{label}, {trace}" for column, label in panels.items()}
        charts += curves(rows, "dram_gib", "system", labels, "DRAM (GiB)")
    return figure_of(charts)


def store_rules(table: pd.DataFrame) -> Figure:
    """Blocks found, and latency beyond a run without a tier, by live set over DRAM and rule."""
    x = "live_over_dram"
    rows = with_lines(compared(table), x)
    return figure_of(curves(rows, x, "rule", _capitalized(RULE_COLUMNS), "Live set over DRAM"))


def time_to_live(table: pd.DataFrame) -> Figure:
    """Mean job time and blocks found by time to live; the other systems are lines."""
    x = "time_to_live_s"
    rows = with_lines(table, x)
    panels = _capitalized(LIFE_COLUMNS)
    return figure_of(curves(rows, x, "system", panels, "Time to live (s)", log_x=True))


def _capitalized(columns: Mapping[str, str]) -> dict[str, str]:
    return {column: label.capitalize() for column, label in columns.items()}


def with_lines(table: pd.DataFrame, x: str) -> pd.DataFrame:
    """The table in which a row without an x stands at both ends of the axis."""
    has_x = table[x] > 0
    at, without = table[has_x], table[~has_x]
    return pd.concat([at, *(without.assign(**{x: end}) for end in (at[x].min(), at[x].max()))])


def global_cache(table: pd.DataFrame, published: float) -> Figure:
    """Blocks found by nodes, a curve for each router and cache; and their ratio, with Mooncake's
    published one (FAST'25, Fig. 10) as a line.
    """
    named = table.assign(system=table["router"] + ", " + table["cache"])
    found = {"found_percent": "Prompt blocks found (%)"}
    ratio = {"ratio": f"{RATIO.capitalize()} (line: Mooncake, {published:g})"}
    return figure_of(
        [
            *curves(named, "nodes", "system", found, "Nodes"),
            *curves(ratios(table), "nodes", "router", ratio, "Nodes", limit=published),
        ]
    )


def speculation(table: pd.DataFrame) -> Figure:
    """Speed-up over a run without drafts by request rate: a panel for each drafter and acceptance,
    a curve for each number of drafts, with its memory counted or ignored. Behind them what ignoring
    it does, from the least to the most over acceptances and numbers of drafts.
    """
    charts, label = list[Chart](), "Request rate (req/s)"
    speeds = speed_ups(table)
    speeds["drafts"] = speeds["num_drafts"].astype(str) + ", " + speeds["memory"]
    for (drafter, acceptance), rows in speeds.groupby(["drafter", "acceptance"], sort=False):
        panel = {"speed_up": f"Speed-up, {drafter}, {acceptance:g}"}
        charts += curves(rows, "rate", "drafts", panel, label, limit=1)
    errors = errors_without_memory(table)
    for name, (error_label, factor) in ERRORS.items():
        series = [_band(str(by), rows, name, factor) for by, rows in errors.groupby("drafter")]
        charts.append(Chart("", label, error_label, series, markers=True))
    return figure_of(charts, columns=3)


def _band(drafter: str, rows: pd.DataFrame, name: str, factor: float) -> Series:
    """The means of an error by rate, in the band of all."""
    by_rate = factor * rows.groupby("rate")[name].agg(["mean", "min", "max"])
    ends = list(zip(by_rate["min"], by_rate["max"], strict=True))
    return Series(drafter, by_rate.index, by_rate["mean"], ends)


def routers(table: pd.DataFrame) -> Figure:
    """Mean TTFT by router, a panel for each setting; beside each point the prompt tokens found."""
    settings = means(table).groupby("setting", sort=False)
    figure = new_figure(5.5, 2.6 * len(settings))
    grid = figure.subplots(len(settings), 1, squeeze=False)
    for axes, (setting, rows) in zip(grid[:, 0], settings, strict=True):
        axes.plot(rows["mean_ttft_s"], rows["router"], "o")
        for row in rows.dropna(subset="found_percent").itertuples():
            place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{row.found_percent:.1f}%", (row.mean_ttft_s, row.router), **place)
        limits = rows["mean_ttft_s"].min() / 2, rows["mean_ttft_s"].max() * 3
        axes.set(title=setting, xlabel="Mean TTFT (s), and tokens found", xscale="log", xlim=limits)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.invert_yaxis()
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
