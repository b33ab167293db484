"""`testbed run --sensitivity`: the interval of each figure of a run."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from testbed.experiments.cli.json_answers import SensitiveFigure
from testbed.experiments.runs.quantities import number
from testbed.run.config import RunConfig
from testbed.study.cost_spread import rule
from testbed.study.sensitivity import (
    PREEMPTIONS,
    Interval,
    figures_of,
    run_intervals,
)

WORDS = {
    "e2e_mean_s": "end to end, mean, s",
    "ttft_mean_s": "time to first token, mean, s",
    "ttft_p50_s": "time to first token, p50, s",
    "tpot_mean_s": "time per output token, mean, s",
    PREEMPTIONS: "preemptions",
}
WIDE = 0.25  # of the mean latency, on one side
LATENCY = "e2e_mean_s"
NEAR_FULL = (
    "Wide: near the load at which the server is full, a small error of the costs becomes a large "
    "one of the latencies, and a server differs from itself by as much."
)


def rows(config: RunConfig, summary: Mapping[str, Any]) -> list[SensitiveFigure]:
    """The interval of each figure that every variation has. summary: of the unchanged run."""
    return [
        SensitiveFigure(name, *interval)
        for name, interval in run_intervals(config, summary).items()
    ]


def table(config: RunConfig, summary: Mapping[str, Any], rows: list[SensitiveFigure]) -> Table:
    """Each figure with its interval, under what was varied. summary: of the unchanged run."""
    figures = figures_of(summary)
    intervals = {row.figure: row for row in rows}
    latency = intervals.get(LATENCY)
    wide = latency is not None and is_wide((latency.lowest, latency.highest), figures[LATENCY])
    shown = Table(
        *("figure", "simulated", "lowest", "highest"),
        title=f"How sensitive: {rule(config)}",
        title_justify="left",
        caption=NEAR_FULL if wide else None,
        caption_justify="left",
    )
    for row in rows:
        values = (figures[row.figure], row.lowest, row.highest)
        shown.add_row(WORDS[row.figure], *map(number, values))
    return shown


def is_wide(interval: Interval, simulated: float) -> bool:
    """True if one side of the interval is further from the figure than WIDE of it."""
    lowest, highest = interval
    return highest > (1 + WIDE) * simulated or lowest < (1 - WIDE) * simulated
