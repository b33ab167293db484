"""Prefix caches over several tiers against the size of the memory below the GPUs."""

import pandas as pd
from matplotlib.figure import Figure

from testbed.experiments.paper.studies.store_rules import COLUMNS, NO_TIER, compared
from testbed.experiments.runs.figure_style import new_figure

PANELS = {"found_percent": "Prompt blocks found (%)", "mean_ttft_s": "Mean TTFT (s)"}


def tiers(table: pd.DataFrame) -> Figure:
    """A row for each trace: blocks found and time to first token, one curve a system; the replay is dashed."""
    traces = list(dict.fromkeys(table["trace"]))
    figure = new_figure(5.0, 2.3 * len(traces))
    sizes = sorted(set(table["dram_gib"]))
    for trace, row in zip(traces, figure.subplots(len(traces), 2, squeeze=False), strict=True):
        for axes, (quantity, label) in zip(row, PANELS.items(), strict=True):
            for system, curve in table[table["trace"] == trace].groupby("system", sort=False):
                line = "--" if system == "replay" else "-"
                places = curve["dram_gib"].map(sizes.index)
                axes.plot(places, curve[quantity], line, marker="o", markersize=3, label=system)
            axes.set_xticks(range(len(sizes)), [f"{size:,g}" for size in sizes])
            axes.set(xlabel="DRAM (GiB)", ylabel=label, ylim=(0, None), title=trace)
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def store_rules(table: pd.DataFrame) -> Figure:
    """Blocks found, and latency beyond that without a tier, by what the sessions need over the DRAM; a curve a rule."""
    figure = new_figure(5.0, 2.5)
    curves = compared(table)
    for axes, (quantity, label) in zip(figure.subplots(1, 2), COLUMNS.items(), strict=True):
        for rule, curve in curves.groupby("rule", sort=False):
            axes.plot(curve["live_over_dram"], curve[quantity], "-", marker="o", markersize=3, label=rule)
        alone = 0.0 if quantity == "slower_s" else table.loc[table["rule"] == NO_TIER, quantity].iloc[0]
        axes.axhline(alone, linestyle=":", color="black", label=NO_TIER)
        axes.set(xlabel="Live set over DRAM", ylabel=label.capitalize())
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
