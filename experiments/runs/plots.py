"""The plots of a run folder: memory over time by kind, latency CDF, batch size over time."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from numpy.typing import NDArray

from experiments.paper.style import KIND_COLORS, KIND_LABELS, RC, log_x, new_figure, save

MAX_POINTS = 600
FREE = "Free"
MARGINS = (0.16, 0.2, 0.97, 0.83)  # left, bottom, right and top, as shares of the figure
Table = Mapping[str, Any]
Grid = dict[str, NDArray[np.float64]]


def draw_all(folder: Path, requests: Table, spans: Table, num_slots: int) -> None:
    """Write memory.png, latency_cdf.png and batch.png. Tables are data frames, or columns by name."""
    with mpl.rc_context(RC):
        grid = over_time(spans)
        save(draw_memory(grid, num_slots, all_free(spans)), folder / "memory.png")
        save(draw_latency(requests), folder / "latency_cdf.png")
        save(draw_batch(grid), folder / "batch.png")


def over_time(spans: Table) -> Grid:
    """Time-weighted means of the spans over at most MAX_POINTS equal stretches of time; idle time counts as zero."""
    names = ["live", "reserved", "internal", "running", "waiting", "swapped"]
    start = np.asarray(spans["start_s"])
    if not len(start):
        return {"time_s": np.array([0.0, 1.0]), **{name: np.zeros(2) for name in names}}
    end = start + np.asarray(spans["duration_s"])
    edges = np.linspace(0, end[-1], min(MAX_POINTS, 2 * len(start)) + 1)
    table = {"time_s": (edges[1:] + edges[:-1]) / 2}
    for name in names:
        area = np.concatenate([[0.0], np.cumsum(np.asarray(spans[name]) * (end - start))])
        integral = np.interp(edges, np.ravel([start, end], order="F"), np.repeat(area, 2)[1:-1])
        table[name] = np.diff(integral) / np.diff(edges)
    return table


def all_free(spans: Table) -> bool:
    """Whether whatever is not held is free, and as good as any other: always so in a paged pool."""
    return all(name in spans and not np.any(np.asarray(spans[name])) for name in ("rounding", "scattered"))


def draw_together(requests: Table, spans: Table, num_slots: int) -> Figure:
    """The three plots beside each other."""
    with mpl.rc_context(RC):
        figure = new_figure(9.6, 2.4, Shown)
        parts = figure.subfigures(1, 3)
        grid = over_time(spans)
        draw_memory(grid, num_slots, all_free(spans), parts[0])
        draw_batch(grid, parts[1])
        draw_latency(requests, parts[2])
    return figure


def one_plot() -> Figure:
    """A figure with margins of its own: to find them by trial, as for other figures, takes longer than to draw it."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(3.3, 2.2))
        FigureCanvasAgg(figure)
        figure.subplots_adjust(*MARGINS)
    return figure


class Shown(Figure):
    """A figure that a notebook shows by itself."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with mpl.rc_context(RC):
            self.savefig(content, format="png", dpi=150)
        return content.getvalue()


def draw_memory(grid: Grid, num_slots: int, free: bool = False, figure: FigureBase | None = None) -> FigureBase:
    """The pool by kind, stacked; `free` says that what is not held is free and no fragmentation."""
    figure = figure or one_plot()
    axes = figure.subplots()
    labels = [*list(KIND_LABELS.values())[:-1], FREE if free else KIND_LABELS["external"]]
    used = [grid[name] / num_slots * 100 for name in ("live", "reserved", "internal")]
    shares = [*used, 100 - sum(used)]
    axes.stackplot(grid["time_s"], *shares, colors=list(KIND_COLORS.values()), labels=labels)
    axes.set(xlabel="Time (s)", ylabel="KV cache (% of slots)", ylim=(0, 100), xlim=(0, grid["time_s"][-1]))
    figure.legend(loc="outside upper center", ncols=2, columnspacing=1, handlelength=1)
    return figure


def draw_latency(requests: Table, figure: FigureBase | None = None) -> FigureBase:
    """Share of requests answered within a normalized latency."""
    figure = figure or one_plot()
    axes = figure.subplots()
    arrival, finish, output_len = (np.asarray(requests[name]) for name in ("arrival_s", "finish_s", "output_len"))
    values = np.sort((finish - arrival) / output_len)
    values = values[~np.isnan(values)]
    if len(values):
        axes.step(values, np.arange(1, len(values) + 1) / len(values) * 100, where="post")
        log_x(axes, values[0], values[-1])
    axes.set(xlabel="Normalized latency (s/token)", ylabel="Requests (%)", ylim=(0, 100))
    return figure


def draw_batch(grid: Grid, figure: FigureBase | None = None) -> FigureBase:
    """Requests that run, wait and are swapped out."""
    figure = figure or one_plot()
    axes = figure.subplots()
    for name in ("running", "waiting", "swapped"):
        if grid[name].any() or name == "running":
            axes.plot(grid["time_s"], grid[name], label=name)
    axes.set(xlabel="Time (s)", ylabel="Requests", ylim=(0, None), xlim=(0, grid["time_s"][-1]))
    figure.legend(loc="outside upper center", ncols=3)
    return figure
