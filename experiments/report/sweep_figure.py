"""A sweep's numbers over the config key that has the most values, a curve for each choice of the others."""

from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from experiments.compare.curves import legend_columns, looks
from experiments.paper.style import RC, new_figure

PANELS = {"norm. latency, s/token": "Norm. latency (s/token)", "batch": "Batched requests"}
FEWEST = 3


class Sweep(NamedTuple):
    """key: the config key along the x axis; curves: by what is chosen, points with the columns of PANELS over it."""

    key: str
    curves: dict[str, pd.DataFrame]


def arranged(different: pd.DataFrame, numbers: pd.DataFrame) -> Sweep | None:
    """The sweep, if any key that differs is a number with three values or more."""
    axes = {name: pd.to_numeric(different[name], errors="coerce") for name in different}
    counts = {name: values.nunique() for name, values in axes.items() if values.notna().all()}
    key = max(counts, key=counts.__getitem__, default="")
    if counts.get(key, 0) < FEWEST:
        return None
    others = [name for name in different if name != key]
    labels = different[others].agg(", ".join, axis=1) if others else pd.Series("", index=different.index)
    points = numbers[list(PANELS)].set_axis(pd.Index(axes[key], name=key))
    return Sweep(key, {str(label): points[(labels == label).to_numpy()].sort_index() for label in labels.unique()})


def draw(sweep: Sweep) -> Figure:
    """One panel above the other."""
    with mpl.rc_context(RC):
        figure = new_figure(height_in=3.6)
        panels = figure.subplots(len(PANELS), 1, sharex=True)
        for axes, (column, label) in zip(panels, PANELS.items(), strict=True):
            for (name, points), (color, line) in zip(sweep.curves.items(), looks(), strict=False):
                axes.plot(
                    points.index, points[column], color=color, linestyle=line, marker="o", markersize=3, label=name
                )
            axes.set(ylabel=label, ylim=(0, None))
        panels[-1].set_xlabel(sweep.key)
        if len(sweep.curves) > 1:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center",
                          ncols=legend_columns(list(sweep.curves)))  # fmt: skip
        return figure


def described(sweep: Sweep) -> str:
    """What the figure says, for those who do not see it."""
    column = next(iter(PANELS))
    ends = [
        f"{name or 'the runs'}: {points[column].iloc[0]:.3g} s/token at {points.index[0]:g}, "
        f"{points[column].iloc[-1]:.3g} at {points.index[-1]:g}"
        for name, points in sweep.curves.items()
    ]
    return f"Mean normalized latency and batched requests over {sweep.key}. Latency of {'; '.join(ends)}."
