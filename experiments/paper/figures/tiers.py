"""Prefix caches over several tiers against the size of the memory below the GPUs."""

import pandas as pd
from matplotlib.figure import Figure

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
