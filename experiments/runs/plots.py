"""The plots of a run folder: memory over time by kind, latency CDF, batch size over time."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.style import KIND_COLORS, KIND_LABELS, RC, log_x, new_figure, save

MAX_POINTS = 600


def draw_all(folder: Path, requests: pd.DataFrame, spans: pd.DataFrame, num_slots: int) -> None:
    """Write memory.png, latency_cdf.png and batch.png."""
    with mpl.rc_context(RC):
        grid = over_time(spans)
        save(draw_memory(grid, num_slots), folder / "memory.png")
        save(draw_latency(requests), folder / "latency_cdf.png")
        save(draw_batch(grid), folder / "batch.png")


def over_time(spans: pd.DataFrame) -> pd.DataFrame:
    """Time-weighted means of the spans over at most MAX_POINTS equal stretches of time; idle time counts as zero."""
    names = ["live", "reserved", "internal", "running", "waiting", "swapped"]
    if spans.empty:
        return pd.DataFrame({"time_s": [0.0, 1.0], **{name: [0.0, 0.0] for name in names}})
    start = spans["start_s"].to_numpy()
    end = start + spans["duration_s"].to_numpy()
    edges = np.linspace(0, end[-1], min(MAX_POINTS, 2 * len(spans)) + 1)
    table = {"time_s": (edges[1:] + edges[:-1]) / 2}
    for name in names:
        area = np.concatenate([[0.0], np.cumsum(spans[name].to_numpy() * (end - start))])
        integral = np.interp(edges, np.ravel([start, end], order="F"), np.repeat(area, 2)[1:-1])
        table[name] = np.diff(integral) / np.diff(edges)
    return pd.DataFrame(table)


def draw_memory(grid: pd.DataFrame, num_slots: int) -> Figure:
    """The pool by kind, stacked."""
    figure = new_figure()
    axes = figure.subplots()
    used = [grid[name].to_numpy() / num_slots * 100 for name in ("live", "reserved", "internal")]
    shares = [*used, 100 - sum(used)]
    axes.stackplot(grid["time_s"], *shares, colors=list(KIND_COLORS.values()), labels=list(KIND_LABELS.values()))
    axes.set(xlabel="Time (s)", ylabel="KV cache (% of slots)", ylim=(0, 100), xlim=(0, grid["time_s"].iloc[-1]))
    figure.legend(loc="outside upper center", ncols=2, columnspacing=1, handlelength=1)
    return figure


def draw_latency(requests: pd.DataFrame) -> Figure:
    """Share of requests answered within a normalized latency."""
    figure = new_figure()
    axes = figure.subplots()
    values = ((requests["finish_s"] - requests["arrival_s"]) / requests["output_len"]).dropna().sort_values()
    if len(values):
        axes.step(values, np.arange(1, len(values) + 1) / len(values) * 100, where="post")
        log_x(axes, values.min(), values.max())
    axes.set(xlabel="Normalized latency (s/token)", ylabel="Requests (%)", ylim=(0, 100))
    return figure


def draw_batch(grid: pd.DataFrame) -> Figure:
    """Requests that run, wait and are swapped out."""
    figure = new_figure()
    axes = figure.subplots()
    for name in ("running", "waiting", "swapped"):
        if grid[name].any() or name == "running":
            axes.plot(grid["time_s"], grid[name], label=name)
    axes.set(xlabel="Time (s)", ylabel="Requests", ylim=(0, None), xlim=(0, grid["time_s"].iloc[-1]))
    figure.legend(loc="outside upper center", ncols=3)
    return figure
