"""The figure of the pairs: preemptions, hit rate, recomputed tokens, TTFT and TPOT against load, and their errors."""

from pathlib import Path

import matplotlib

from testbed.experiments.runs.whole_files import write_with
from testbed.experiments.validation.pairs import Sides
from testbed.kernels.engine.pairs.plan import LOADS, SERIES

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROWS = {
    "preemptions": ("preemptions", 1),
    "hit_rate": ("hit rate (%)", 100),
    "recomputed_tokens": ("recomputed tokens", 1),
    "ttft_mean_s": ("mean TTFT (s)", 1),
    "tpot_mean_s": ("mean TPOT (ms)", 1000),
}
STYLES = {"measured, range of the seeds": "ko-", "simulated": "C0s--"}


def draw(sides: Sides, path: Path) -> None:
    """A column of panels for each series that has all loads; means over the seeds, and their range."""
    figure, axes = plt.subplots(len(ROWS), len(SERIES), figsize=(14, 12), layout="constrained", squeeze=False)
    for column, series in zip(axes.T, SERIES, strict=True):
        column[0].set_title(series.about)
        column[-1].set_xlabel("load, times the sustainable one")
        own = Sides(*(side.xs(series.about, level="about") for side in sides))
        for panel, name in zip(column, ROWS, strict=True):
            _panel(panel, own, name)
    for panel, (label, _) in zip(axes[:, 0], ROWS.values(), strict=True):
        panel.set_ylabel(label)
    axes[0, 0].legend(frameon=False)
    write_with(path, lambda temporary: figure.savefig(temporary, dpi=75, format=path.suffix[1:]))
    plt.close(figure)


def _panel(panel: Axes, sides: Sides, name: str) -> None:
    means = []
    for (label, style), side in zip(STYLES.items(), sides, strict=True):
        of_load = (ROWS[name][1] * side[name]).groupby(level="load").agg(["mean", "min", "max"]).reindex(LOADS)
        if of_load["mean"].isna().any():
            panel.text(0.5, 0.5, "no cache", ha="center", transform=panel.transAxes)
            panel.set(xticks=[], yticks=[])
            return
        middle = of_load["mean"]
        means.append(middle)
        reach = [middle - of_load["min"], of_load["max"] - middle]
        panel.errorbar(range(len(LOADS)), middle, reach, fmt=style, markersize=3.5, linewidth=1, capsize=2, label=label)
    panel.set_xticks(range(len(LOADS)), [f"{load:g}" for load in LOADS])
    panel.margins(y=0.2)
    for at, (real, ours) in enumerate(zip(*means, strict=True)):
        text = f"{ours - real:+.1f}" if name == "hit_rate" else f"{100 * (ours / real - 1):+.0f}%" if real else ""
        panel.annotate(text, (at, max(real, ours)), (0, 6), textcoords="offset points", ha="center", fontsize=7)
