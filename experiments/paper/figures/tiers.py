"""Sessions and conversations with caches over several tiers, and the transfers between these."""

from textwrap import fill

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from testbed.experiments.paper.studies import store_rules as rules
from testbed.experiments.paper.studies import time_to_live as lives
from testbed.experiments.paper.studies.tiers import REPLAYS
from testbed.experiments.runs.figure_style import new_figure

PANELS = {"found_percent": "Prompt blocks found (%)", "mean_ttft_s": "Mean TTFT (s)"}


def tiers(table: pd.DataFrame) -> Figure:
    """A row for each trace: blocks found and time to first token, one curve a system; replays are dashed or dotted."""
    traces = list(dict.fromkeys(table["trace"]))
    figure = new_figure(5.0, 2.3 * len(traces))
    sizes = sorted(set(table["dram_gib"]))
    for trace, row in zip(traces, figure.subplots(len(traces), 2, squeeze=False), strict=True):
        spaced = table[table["trace"] == trace].assign(dram_gib=lambda rows: rows["dram_gib"].map(sizes.index))
        for axes, (quantity, label) in zip(row, PANELS.items(), strict=True):
            _curves(axes, spaced, "dram_gib", quantity, "system", dict(zip(REPLAYS, ("--", ":"), strict=True)))
            axes.set_xticks(range(len(sizes)), [f"{size:,g}" for size in sizes])
            axes.set(xlabel="DRAM (GiB)", ylabel=label, ylim=(0, 1.08 * spaced[quantity].max()), title=trace)
    curves = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}  # not every trace has replays
    figure.legend(curves.values(), curves, loc="outside upper center", ncols=2)
    return figure


def store_rules(table: pd.DataFrame) -> Figure:
    """Blocks found, and latency beyond that without a tier, by what the sessions need over the DRAM; a curve a rule."""
    figure = new_figure(5.0, 2.5)
    curves = rules.compared(table)
    for axes, (quantity, label) in zip(figure.subplots(1, 2), rules.COLUMNS.items(), strict=True):
        _curves(axes, curves, "live_over_dram", quantity, "rule")
        alone = 0.0 if quantity == "slower_s" else table.loc[table["rule"] == rules.NO_TIER, quantity].iloc[0]
        axes.axhline(alone, linestyle=":", color="black", label=rules.NO_TIER)
        axes.set(xlabel="Live set over DRAM", ylabel=fill(label.capitalize(), 30))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def time_to_live(table: pd.DataFrame) -> Figure:
    """Mean job time and blocks found by time to live; the other systems are lines."""
    figure = new_figure(5.0, 2.5)
    curve, others = (table[table["system"].eq(lives.SYSTEM).eq(wanted)] for wanted in (True, False))
    for axes, (quantity, label) in zip(figure.subplots(1, 2), lives.COLUMNS.items(), strict=True):
        _curves(axes, curve, "time_to_live_s", quantity, "system")
        for color, row in enumerate(others.to_dict("records"), 1):
            axes.axhline(row[quantity], linestyle=":", color=f"C{color}", label=row["system"])
        axes.set(xlabel="Time to live (s)", ylabel=label.capitalize(), xscale="log")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def transfer_sizes(table: pd.DataFrame) -> Figure:
    """A panel for each way: the time of a transfer by block size, one curve a method."""
    figure = new_figure(5.0, 2.4)
    ways = table.groupby("way", sort=False)
    for axes, (way, rows) in zip(figure.subplots(1, ways.ngroups, sharey=True, squeeze=False)[0], ways, strict=True):
        _curves(axes, rows, "block_size", "transfer_ms", "method")
        axes.set_xscale("log")
        axes.set_xticks(sizes := sorted(set(rows["block_size"])), sizes)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"Block size (tokens)\n{way}")
    figure.axes[0].set(ylabel=f"{table['tokens'].iloc[0]:,} tokens (ms)", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _curves(axes: Axes, table: pd.DataFrame, x: str, y: str, by: str, lines: dict[str, str] | None = None) -> None:
    for name, curve in table.groupby(by, sort=False):
        axes.plot(curve[x], curve[y], (lines or {}).get(str(name), "-"), marker="o", markersize=3, label=name)
