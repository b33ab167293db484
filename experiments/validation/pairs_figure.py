"""The figure of the pairs: preemptions, hit rate, recomputed tokens, TTFT and TPOT against load, and their errors."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

from testbed.experiments.runs.whole_files import write_with
from testbed.experiments.validation.pairs import Both
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


def draw(pairs: Sequence[Both], path: Path) -> None:
    """A column of panels for each series that has all loads; means over the seeds, and their range."""
    figure, axes = plt.subplots(len(ROWS), len(SERIES), figsize=(14, 12), layout="constrained", squeeze=False)
    for column, series in zip(axes.T, SERIES, strict=True):
        column[0].set_title(series.about)
        column[-1].set_xlabel("load, times the sustainable one")
        for panel, name in zip(column, ROWS, strict=True):
            _panel(panel, [one for one in pairs if one.pair.series is series], name)
    for panel, (label, _) in zip(axes[:, 0], ROWS.values(), strict=True):
        panel.set_ylabel(label)
    axes[0, 0].legend(frameon=False)
    write_with(path, lambda temporary: figure.savefig(temporary, dpi=75, format=path.suffix[1:]))
    plt.close(figure)


def _panel(panel: Axes, pairs: Sequence[Both], name: str) -> None:
    sides = {"measured, range of the seeds": ("ko-", "real"), "simulated": ("C0s--", "ours")}
    means: dict[str, list[float]] = {}
    for label, (style, side) in sides.items():
        groups = [
            [v for p in pairs if p.pair.load == load and (v := getattr(p, side)[name]) is not None] for load in LOADS
        ]
        if not all(groups):
            panel.text(0.5, 0.5, "no cache", ha="center", transform=panel.transAxes)
            panel.set(xticks=[], yticks=[])
            return
        scale = ROWS[name][1]
        middle = means[side] = [scale * fmean(group) for group in groups]
        reach = [[scale * abs(end(g) - fmean(g)) for g in groups] for end in (min, max)]
        panel.errorbar(range(len(LOADS)), middle, reach, fmt=style, markersize=3.5, linewidth=1, capsize=2, label=label)
    panel.set_xticks(range(len(LOADS)), [f"{load:g}" for load in LOADS])
    panel.margins(y=0.2)
    for at, (real, ours) in enumerate(zip(means["real"], means["ours"], strict=True)):
        text = f"{ours - real:+.1f}" if name == "hit_rate" else f"{100 * (ours / real - 1):+.0f}%" if real else ""
        panel.annotate(text, (at, max(real, ours)), (0, 6), textcoords="offset points", ha="center", fontsize=7)
