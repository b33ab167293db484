"""Figures of fleets."""

import pandas as pd
from matplotlib.figure import Figure

from testbed.experiments.paper.studies.global_cache import RATIO, ratios
from testbed.experiments.runs.plots import new_figure

STYLES = {"local": ":", "global": "-"}


def global_cache(table: pd.DataFrame, published: float) -> Figure:
    """Blocks found by nodes, a curve for each router and cache; and their ratio, with Mooncake's
    published one as a line.
    """
    figure = new_figure(5.5, 2.5)
    found, over = figure.subplots(1, 2)
    colors = {router: f"C{number}" for number, router in enumerate(dict.fromkeys(table["router"]))}
    for (router, cache), rows in table.groupby(["router", "cache"], sort=False):
        look = {"color": colors[router], "linestyle": STYLES[cache], "marker": "o", "markersize": 3}
        found.plot(rows["nodes"], rows["found_percent"], label=f"{router}, {cache}", **look)
    for router, rows in ratios(table).groupby("router", sort=False):
        over.plot(rows["nodes"], rows["ratio"], color=colors[router], marker="o", markersize=3)
    over.axhline(published, color="black", linestyle="--", linewidth=0.8)
    line = f"Mooncake (FAST'25, Fig. 10): {published:g}"
    over.annotate(line, (0.98, published), xycoords=("axes fraction", "data"), ha="right", va="top")
    found.set(xlabel="Nodes", ylabel="Prompt blocks found (%)", ylim=(0, None))
    over.set(xlabel="Nodes", ylabel=RATIO.capitalize(), ylim=(0, None))
    for axes in (found, over):
        axes.set_xticks(sorted(set(table["nodes"])))
    figure.legend(*found.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
