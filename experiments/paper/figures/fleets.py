"""Figures of fleets."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from testbed.experiments.look.plots import new_figure
from testbed.experiments.paper.studies.global_cache import RATIO, ratios
from testbed.experiments.paper.studies.routers import means

STYLES = {"local": ":", "global": "-"}


def global_cache(table: pd.DataFrame, published: float) -> Figure:
    """Blocks found by nodes, a curve for each router and cache; and their ratio, with Mooncake's
    published one as a line. Markers become smaller, so that equal curves are seen.
    """
    figure = new_figure(5.5, 2.5)
    hits_panel, ratio_panel = figure.subplots(1, 2)
    routers = list(dict.fromkeys(table["router"]))
    looks = {
        router: {"color": f"C{number}", "marker": "o", "markersize": 6 / (1 + number)}
        for number, router in enumerate(routers)
    }
    for (router, cache), rows in table.groupby(["router", "cache"], sort=False):
        label, style = f"{router}, {cache}", STYLES[cache]
        hits_panel.plot(rows["nodes"], rows["found_percent"], style, label=label, **looks[router])
    for router, rows in ratios(table).groupby("router", sort=False):
        ratio_panel.plot(rows["nodes"], rows["ratio"], **looks[router])
    ratio_panel.axhline(published, color="black", linestyle="--", linewidth=0.8)
    line = f"Mooncake (FAST'25, Fig. 10): {published:g}"
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    ratio_panel.annotate(line, (1, published), (0, -3), ha="right", va="top", **place)
    hits_panel.set(xlabel="Nodes", ylabel="Prompt blocks found (%)", ylim=(0, None))
    ratio_panel.set(xlabel="Nodes", ylabel=RATIO.capitalize(), ylim=(0, None))
    for axes in (hits_panel, ratio_panel):
        axes.set_xticks(sorted(set(table["nodes"])))
    figure.legend(*hits_panel.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


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
