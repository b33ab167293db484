"""The charts of a run as data, which `plots` draws for files and `pages` for HTML."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.look.pages.page import Chart, Series
from testbed.run.summaries import ENGINES, RUN

KIND_LABELS = {
    "token_states": "Token states",
    "reserved": "Reservation",
    "internal": "Internal frag.",
    "external": "External frag. & others",
}
FREE, CACHED = "Free", "Cached"
MAX_POINTS = 600
Table = Mapping[str, Any]
Grid = dict[str, NDArray[np.float64]]

OVER_TIME = ("live", "reserved", "internal", "running", "waiting", "swapped")
CACHE = "cached"


def charts_of(run: FinishedRun) -> list[Chart]:
    """The charts of a finished run; none if it wrote no tables."""
    if run.requests is None or run.spans is None:
        return []
    return run_charts(run.requests, run.spans, _num_slots(run.summary))


def _num_slots(summary: Mapping[str, Any]) -> int:
    """The slots of all engines' pools."""
    engines = summary.get(ENGINES, {"0": summary[RUN]}).values()
    return sum(engine["pool_slots"] or 1 for engine in engines)


def run_charts(requests: Table, spans: Table, num_slots: int) -> list[Chart]:
    """Memory by kind, requests by state, and latencies of one run.

    Tables are data frames, or columns by name. num_slots: of all engines together.
    """
    grid = over_time(spans)
    # In a paged pool all slots that are not held are free and interchangeable.
    apart = ("rounding", "external_fragmentation")
    is_free = all(name in spans and not np.any(np.asarray(spans[name])) for name in apart)
    labels = [*list(KIND_LABELS.values())[:-1], FREE if is_free else KIND_LABELS["external"]]
    used = [grid[name] / num_slots * 100 for name in ("live", "reserved", "internal")]
    cached = grid["cached"] / num_slots * 100
    layers = [*zip(labels, [*used, 100 - sum(used) - cached], strict=True)]
    if cached.any():
        layers.append((CACHED, cached))
    shares = [Series(name, grid["time_s"], values) for name, values in layers]
    others = [name for name in ("waiting", "swapped") if grid[name].any()]
    states = [Series(name, grid["time_s"], grid[name]) for name in ("running", *others)]
    e2e_s, output_len = (np.asarray(requests[name], float) for name in ("e2e_s", "output_len"))
    return [
        Chart(
            "KV cache by kind", "Time (s)", "KV cache (% of slots)", shares, stacked=True, top=100
        ),
        Chart("Requests by state", "Time (s)", "Requests", states),
        cdf_chart("Normalized latency (s/token)", {"requests": e2e_s / output_len}),
    ]


def over_time(spans: Table) -> Grid:
    """Time-weighted means of the spans over at most MAX_POINTS equal intervals.

    Idle time counts as zero, but what is cached stays. Several engines are added up.
    """
    start = np.asarray(spans["start_s"])
    if not len(start):
        return {
            "time_s": np.array([0.0, 1.0]),
            **{name: np.zeros(2) for name in (*OVER_TIME, CACHE)},
        }
    names = ("start_s", "duration_s", *OVER_TIME, CACHE)
    columns = {name: np.asarray(spans[name]) for name in names}
    last_s = float((start + columns["duration_s"]).max())
    edges = np.linspace(0, last_s, min(MAX_POINTS, 2 * len(start)) + 1)
    engine = np.asarray(spans["engine"]) if "engine" in spans else np.zeros(len(start))
    tables = [
        {name: column[engine == number] for name, column in columns.items()}
        for number in np.unique(engine)
    ]
    sums = {name: sum(_means(table, name, edges) for table in tables) for name in OVER_TIME}
    sums[CACHE] = sum(_means(_without_gaps(table, last_s), CACHE, edges) for table in tables)
    return {"time_s": (edges[1:] + edges[:-1]) / 2, **sums}


def _without_gaps(spans: Grid, last_s: float) -> Grid:
    """The spans, each of which lasts until the next one begins."""
    start = spans["start_s"]
    return {**spans, "duration_s": np.diff(start, append=max(last_s, start[-1]))}


def _means(spans: Grid, name: str, edges: Any) -> Any:
    """Means of a column of one engine's spans over the intervals between these edges."""
    start, end = spans["start_s"], spans["start_s"] + spans["duration_s"]
    area = np.concatenate([[0.0], np.cumsum(spans[name] * (end - start))])
    integral = np.interp(edges, np.ravel([start, end], order="F"), np.repeat(area, 2)[1:-1])
    return np.diff(integral) / np.diff(edges)


def cdf_chart(label: str, samples: Mapping[str, Any]) -> Chart:
    """The cumulative distribution of each sample; the axis is logarithmic over a decade."""
    sorted_values = {
        name: np.sort(np.asarray(values)[~np.isnan(values)]) for name, values in samples.items()
    }
    series = [
        Series(name, values, np.arange(1, len(values) + 1) / max(len(values), 1) * 100)
        for name, values in sorted_values.items()
    ]
    all_values = np.concatenate([*sorted_values.values(), np.empty(0)])
    is_log = bool(len(all_values)) and 0 < 10 * all_values.min() <= all_values.max()
    return Chart(
        f"{label.partition(' (')[0]}, distribution",
        label,
        "Requests (%)",
        series,
        log_x=is_log,
        top=100,
    )
