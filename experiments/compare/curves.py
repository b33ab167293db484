"""The curves of several runs over each other: batch and memory over time, and how latencies are distributed."""

import io
from collections.abc import Iterator, Sequence
from itertools import cycle

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from experiments.compare.finished_run import FinishedRun
from experiments.compare.quantities import latencies
from experiments.paper.style import RC, log_x, new_figure
from experiments.runs.plots import over_time

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
LINES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
DISTRIBUTIONS = {
    "ttft_s": ("TTFT (s)", 1.0),
    "tpot_s": ("TPOT (ms/token)", 1e3),
    "normalized_latency_s_per_token": ("Norm. latency (s/token)", 1.0),
    "e2e_s": ("End-to-end latency (s)", 1.0),
}
LEGEND_CHARACTERS = 54
Look = tuple[str, object]


def draw(runs: Sequence[FinishedRun]) -> Figure:
    """Six panels, as wide as one column of a page; a run without tables is left out."""
    looked: list[tuple[FinishedRun, Look]] = list(zip(runs, looks(), strict=False))
    with mpl.rc_context(RC):
        figure = new_figure(height_in=5.4)
        panels = figure.subplots(3, 2).flat
        _over_time(next(panels), looked, ["running"], 1, "Batched requests")
        _over_time(next(panels), looked, ["live", "reserved", "internal"], 1000, "KV (1,000 tokens)")
        for (key, (label, scale)), axes in zip(DISTRIBUTIONS.items(), panels, strict=True):
            _distribution(axes, looked, key, label, scale)
        handles = [Line2D([], [], color=color, linestyle=line, label=run.name) for run, (color, line) in looked]
        figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns([run.name for run in runs]))
        return figure


def legend_columns(names: Sequence[str]) -> int:
    """As many as fit one column of a page side by side."""
    return max(1, min(3, len(names), LEGEND_CHARACTERS // (max(map(len, names)) + 6)))


def drawable(runs: Sequence[FinishedRun]) -> bool:
    """Whether any run has left tables to draw."""
    return any(run.requests is not None or run.spans is not None for run in runs)


def described(runs: Sequence[FinishedRun]) -> str:
    """What the figure shows, for those who do not see it."""
    names = ", ".join(run.name for run in runs)
    return (
        f"Six panels, a curve for each of {names}: requests in the batch over time, KV cache held over time, and the "
        "share of requests within a TTFT, TPOT, normalized latency and end-to-end latency. The tables have the means "
        "and percentiles."
    )


def looks() -> Iterator[Look]:
    """Colours and lines, in the same order for every figure of runs."""
    return zip(cycle(COLORS), cycle(LINES), strict=False)


def _over_time(
    axes: Axes, looked: Sequence[tuple[FinishedRun, Look]], columns: list[str], scale: float, label: str
) -> None:
    for run, (color, line) in looked:
        if run.spans is not None:
            grid = over_time(_all_columns(run.spans))
            axes.plot(
                grid["time_s"],
                sum(np.asarray(grid[name]) for name in columns) / scale,
                color=color,
                linestyle=line,
                linewidth=1,
            )
    axes.set(xlabel="Time (s)", ylabel=label, xlim=(0, None), ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(4))


def _all_columns(spans: pd.DataFrame) -> pd.DataFrame:
    """Spans with the queues that an older version did not write; nobody looks at them here."""
    return spans.assign(**{name: 0 for name in ("waiting", "swapped") if name not in spans})


def _distribution(axes: Axes, looked: Sequence[tuple[FinishedRun, Look]], key: str, label: str, scale: float) -> None:
    ends = []
    for run, (color, line) in looked:
        values = np.sort(latencies(run.requests)[key]) * scale if run.requests is not None else np.empty(0)
        if len(values):
            shares = np.arange(1, len(values) + 1) / len(values) * 100
            axes.step(values, shares, where="post", color=color, linestyle=line, linewidth=1)
            ends += [values[0], values[-1]]
    axes.set(xlabel=label, ylabel="Requests (%)", ylim=(0, 100))
    if ends:
        log_x(axes, min(ends), max(ends))


def png(figure: Figure) -> bytes:
    """A figure for a page."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=300)
    return image.getvalue()
