"""The charts of several runs: batch, queue, memory and latency over time, and distributions of latencies."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from testbed.experiments.compare.finished_run import FinishedRun
from testbed.experiments.pages.chart import Chart, Series
from testbed.experiments.runs.plots import cdf_chart, over_time
from testbed.experiments.runs.quantities import latencies

OVER_TIME = {
    "Batched requests": (("running",), 1.0),
    "Waiting requests": (("waiting",), 1.0),
    "KV cache (1,000 tokens)": (("live", "reserved", "internal"), 1e3),
}
DISTRIBUTIONS = {
    "ttft_s": ("TTFT (s)", 1.0),
    "tpot_s": ("TPOT (ms/token)", 1e3),
    "normalized_latency_s_per_token": ("Normalized latency (s/token)", 1.0),
    "e2e_s": ("End-to-end latency (s)", 1.0),
}
INTERVALS = 60


def charts(runs: Sequence[FinishedRun]) -> Iterator[Chart]:
    """A curve for each run; a run without tables has none."""
    timed = [run for run in runs if run.spans is not None]
    served = [(run.name, run.requests) for run in runs if run.requests is not None]
    grids = [over_time(_all_columns(run.spans)) for run in timed if run.spans is not None]
    for label, (columns, scale) in OVER_TIME.items() if grids else ():
        series = [
            Series(run.name, grid["time_s"], sum(grid[name] for name in columns) / scale)
            for run, grid in zip(timed, grids, strict=True)
        ]
        yield Chart(label.partition(" (")[0], "Time (s)", label, series)
    if served:
        series = [Series(name, *ttft_by_arrival(table)) for name, table in served]
        yield Chart("TTFT by time of arrival", "Time of arrival (s)", "Mean TTFT (s)", series)
    for key, (label, scale) in DISTRIBUTIONS.items() if served else ():
        yield cdf_chart(label, {name: latencies(table)[key] * scale for name, table in served})


def ttft_by_arrival(requests: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The mean TTFT (s) of the requests that arrived in each of at most INTERVALS equal intervals (s)."""
    arrival, ttft = requests["arrival_s"], requests["first_token_s"] - requests["arrival_s"]
    interval = np.minimum(arrival * INTERVALS // max(float(arrival.max()), 1e-9), INTERVALS - 1)
    found = pd.DataFrame({"arrival": arrival, "ttft": ttft}).groupby(interval).mean()
    return found["arrival"], found["ttft"]


def _all_columns(spans: pd.DataFrame) -> pd.DataFrame:
    """Spans with the queue columns that older versions lack."""
    return spans.assign(**{name: 0 for name in ("waiting", "swapped") if name not in spans})
