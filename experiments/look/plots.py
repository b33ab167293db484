"""The style of all figures, and charts drawn with matplotlib for files."""

import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from testbed.experiments.look.pages.page import Chart, curve_look
from testbed.experiments.runs.whole_files import whole

# Blue, orange and grey differ in lightness, so colour-blind readers distinguish them; kinds
# without tokens are hatched.
KIND_COLORS = {
    "token_states": "#2f78b7",
    "reserved": "#ffd9a8",
    "internal": "#f28e2b",
    "external": "#b4b8bf",
}
CACHED_COLOR = "#8cc7b5"
KIND_HATCHES = {"token_states": "", "reserved": "////", "internal": "\\\\\\\\", "external": "...."}
HATCH_COLOR = "#55585e"
STYLE = Path(__file__).with_name("figures.mplstyle")
LABEL_WIDTH = 26  # characters of a y label that stand beside a chart; more take another line
SYSTEMS = {
    "fastertransformer": ("FasterTransformer", "#8a8f98", "s"),
    "orca-max": ("Orca (Max)", "#8c3b00", "v"),
    "orca-pow2": ("Orca (Pow2)", "#f0b860", "^"),
    "orca-oracle": ("Orca (Oracle)", "#f07f1a", "D"),
    "vllm": ("vLLM", "#2f78b7", "o"),
}
# As page.css has them.
COLORS = ("#0067ab", "#c24f00", "#007a5c", "#a6447f", "#8a6d00", "#2a8ec2", "#333333", "#777777")
LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


class Shown(Figure):
    """A figure that a notebook displays."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with style.context(STYLE):
            self.savefig(content, format="png", dpi=150)
        return content.getvalue()


def new_figure(width_in: float = 3.3, height_in: float = 2.2) -> Figure:
    """An empty figure, by default of one column's width; pyplot's global state is not used."""
    with style.context(STYLE):
        figure = Shown(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix; equal figures give equal bytes."""
    metadata = {{".pdf": "CreationDate", ".svg": "Date"}.get(path.suffix, "Software"): None}
    with style.context(STYLE), whole(path) as temporary:
        figure.savefig(temporary, metadata=metadata, dpi=200)


def log_x(axes: Axes, low: float, high: float) -> None:
    """Make the x axis logarithmic if the values span a decade; its labels cannot overlap."""
    if not 0 < 10 * low <= high:
        return
    axes.set_xscale("log")
    _label(axes.xaxis, LogLocator(10, (1,) if high > 100 * low else (1, 3), numticks=4))


def _label(axis: Axis, locator: LogLocator) -> None:
    axis.set_major_locator(locator)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def figure_of(charts: Sequence[Chart], columns: int = 2) -> Figure:
    """Charts in rows of at most `columns`; one legend for all if their series have the same
    names.
    """
    columns = min(columns, len(charts))
    with style.context(STYLE):
        rows = -(-len(charts) // columns)
        figure = new_figure(3.3 * columns, 2.2 * rows)
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, chart in zip(panels, charts, strict=False):
            plot(axes, chart)
        for axes in panels[len(charts) :]:
            axes.set_visible(False)
        if len({tuple(curve.name for curve in chart.series) for chart in charts}) == 1:
            _legend(figure, panels[0], columns)
        else:
            for axes in panels[: len(charts)]:
                _legend(axes, axes, 1)
    return figure


def _legend(place: Axes | Figure, axes: Axes, columns: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:
        return
    num_columns = max(1, min(4, len(names), 54 * columns // (max(map(len, names)) + 6)))
    where = (
        {"loc": "outside upper center"}
        if isinstance(place, Figure)
        else {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
    )
    place.legend(handles, names, ncols=num_columns, handlelength=1.6, **where)


def plot(axes: Axes, chart: Chart) -> None:
    """Draw a chart with matplotlib."""
    if chart.stacked:
        _plot_layers(axes, chart)
    else:
        _plot_curves(axes, chart)
    axes.set(xlabel=chart.x_label, ylabel=fill(chart.y_label, LABEL_WIDTH))
    if chart.limit is not None:
        axes.axhline(chart.limit, color="#333333", linestyle=":", linewidth=1)
    if chart.log_y:
        axes.set_yscale("log")
        _label(axes.yaxis, LogLocator(10, (1, 2, 5), numticks=6))
    else:
        axes.set_ylim(0, chart.top)
    if chart.log_x:
        xs = np.concatenate([np.asarray(curve.x) for curve in chart.series])
        log_x(axes, xs.min(), xs.max())
    elif not chart.markers and chart.x_label == "Time (s)":
        axes.set_xlim(0, None)


def _plot_layers(axes: Axes, chart: Chart) -> None:
    """Draw the series on each other, in the colours of the kinds of memory."""
    areas = axes.stackplot(
        chart.series[0].x,
        *(np.asarray(layer.y) for layer in chart.series),
        labels=[layer.name for layer in chart.series],
        colors=[*KIND_COLORS.values(), CACHED_COLOR],
        linewidth=0,
    )
    for area, hatch in zip(areas, [*KIND_HATCHES.values(), ""], strict=False):
        area.set(hatch=hatch, edgecolor=HATCH_COLOR)


def _plot_curves(axes: Axes, chart: Chart) -> None:
    """Draw each series as a curve of its own colour and dashes."""
    for number, curve in enumerate(chart.series):
        color, dashes = curve_look(number)
        if curve.band:
            low, high = np.array(curve.band).T
            if chart.log_y:  # which ends above 0
                low = np.maximum(low, np.min(curve.y) / 2)
            axes.fill_between(curve.x, low, high, color=COLORS[color], alpha=0.2, lw=0)
        axes.plot(
            curve.x,
            curve.y,
            label=curve.name,
            color=COLORS[color],
            linestyle=LINES[dashes],
            marker="o" if chart.markers else None,
            markersize=3,
        )
