"""Errors of a simulated server against a real one (see experiments/ACCURACY.md)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.content_hash import content_hash
from testbed.experiments.real.validation.beyond_tested import beyond_tested
from testbed.experiments.real.validation.log_replay import Replayed
from testbed.experiments.real.validation.logged_server import high_water
from testbed.experiments.real.validation.metric_error import MetricError
from testbed.experiments.runs.whole_files import whole
from testbed.run.config import RunConfig
from testbed.run.metrics import in_words, overload, spread
from testbed.study.sensitivity import Interval
from testbed.traces.vllm_log import Times, VllmLog

KINDS = ("ttft_s", "tpot_s", "e2e_s")
MEASURES = ("mean", "p50", "p90", "p99")
PARTS = 4
NAMES = dict(zip(KINDS, ("TTFT", "TPOT", "latency"), strict=True))
FILLED = 0.95  # share of the pool from which memory counts as short
POINTS = 400
STYLES = {"real": "k-", "simulated": "C0--"}


def metrics(times: Times) -> dict[str, float]:
    """Mean and percentiles of TTFT, TPOT and latency, and output tokens per second.

    A kind of latency that no request has is left out.
    """
    values: dict[str, Any] = {}
    for kind in KINDS:
        latencies = getattr(times, kind)
        if len(latencies):
            measures = spread(latencies)
            values |= {f"{kind}_{name}": measures[name] for name in MEASURES}
    values["tokens_per_s"] = float(times.output_len.sum() / times.finish_s.max())
    return values


def compare(log: str, real: Times, simulated: Times) -> list[MetricError]:
    """A row for each metric that both have. log: the name of the rows."""
    simulated_metrics = metrics(simulated)
    return [
        MetricError(log, name, value, simulated_metrics[name])
        for name, value in metrics(real).items()
        if name in simulated_metrics
    ]


def over_time(real: Times, simulated: Times) -> Iterator[tuple[str, ...]]:
    """For each quarter of the requests: its arrivals, and the errors of its means in percent."""
    for part in np.array_split(np.arange(len(real.output_len)), PARTS):
        if len(part):
            in_log, in_simulation = real.take(part), simulated.take(part)
            rows = compare("", in_log, in_simulation)
            errors = {row.metric: f"{row.error_percent:+.1f}%" for row in rows}
            when = f"{in_log.arrival_s[0]:.1f} to {in_log.arrival_s[-1]:.1f} s"
            yield when, *(errors.get(f"{kind}_mean", "-") for kind in KINDS)


def conclude(
    log: VllmLog, config: RunConfig, replayed: Replayed, intervals: Mapping[str, Interval]
) -> Iterator[str]:
    """The end of the report: conclusions that this log supports, and those that it does not.
    intervals: of its simulated metrics.
    """
    yield f"\n{log.path}: what this validation supports"
    yield from _supported(log, config, replayed)
    yield "what it does not support"
    rows = compare(log.path, log.times, replayed.times)
    yield from beyond_tested(log, config, rows, intervals)
    if content_hash(log.path) in replayed.measured.get("software_fitted_on", {}).values():
        yield "  a prediction: times were fitted on this very log; validate another one"
    share = high_water(log, replayed.block_size) / replayed.num_blocks
    if log.preemptions and not replayed.preemptions:
        yield (
            f"  memory that runs short: the log has {log.preemptions:,} preemptions, the "
            "simulation none: its pool, model or limits are another server's, or the server is so "
            "near its limit that a small error of the costs decides (the intervals above)"
        )
    elif share < FILLED and not replayed.preemptions:
        yield (
            f"  memory that runs short: the log's requests used at most {share:.0%} of the pool, "
            "and none was preempted"
        )
    if behind := overload(log.times.arrival_s, log.times.first_token_s):
        yield (
            f"  a server that keeps up with its load: in the log {in_words(behind)}, where a small "
            "error of the costs becomes a large one of TTFT"
        )
    count = len(log.times.output_len)
    yield f"  p99: of {count:,} requests {round(count / 100):,} are beyond it"
    yield (
        "  other rates, lengths, models, GPUs and ways to manage memory: nothing here was "
        "compared with them"
    )


def _errors(log: VllmLog, replayed: Replayed) -> dict[str, float]:
    """The errors in percent, without sign, by metric."""
    rows = compare("", log.times, replayed.times)
    return {row.metric: abs(row.error_percent) for row in rows}


def _supported(log: VllmLog, config: RunConfig, replayed: Replayed) -> Iterator[str]:
    """The load that was compared, and the errors of its means and percentiles."""
    real, errors = log.times, _errors(log, replayed)
    server = f"{config.model.name} on {config.server.num_gpus} x {config.server.gpu.name}"
    last_s = real.arrival_s[-1]
    load = f"at about {len(real.arrival_s) / last_s:.2g} requests/s" if last_s else "all at once"
    running = int(real.running_at(real.first_token_s).max())
    lengths = (
        f"prompts of up to {log.read().prompt_len.max():,} and outputs of up to "
        f"{real.output_len.max():,} tokens"
    )
    kinds = [kind for kind in KINDS if f"{kind}_mean" in errors]
    means = ", ".join(f"{NAMES[kind]} {errors[f'{kind}_mean']:.1f}%" for kind in kinds)
    tails = ", ".join(
        f"{NAMES[kind]} {max(errors[f'{kind}_p50'], errors[f'{kind}_p90']):.1f}%" for kind in kinds
    )
    yield f"  {server} {load}, up to {running} of them running, {lengths}:"
    yield f"  errors of the means: {means}; of p50 and p90, the worse one: {tails}"


def draw(logs: Sequence[tuple[str, Times, Times]], path: Path) -> None:
    """Draw a row of panels for each (name, real, simulated).

    The panels are the running requests over time, the distributions of TTFT and of TPOT, and each
    request's predicted against its measured latency.
    """
    from matplotlib.figure import Figure  # which takes a second to import

    figure = Figure(figsize=(14.5, 2.8 * len(logs)), layout="constrained")
    panels = figure.subplots(len(logs), 4, squeeze=False)
    for (running, ttft, tpot, scatter), (name, real, simulated) in zip(panels, logs, strict=True):
        both = (real, simulated)
        _running_requests(running, both)
        running.set_title("/".join(Path(name).parts[-2:])[-40:])
        _distribution(ttft, "TTFT (s)", [times.ttft_s for times in both])
        _distribution(tpot, "TPOT (ms)", [1000 * times.tpot_s for times in both])
        _each_request(scatter, real, simulated)
    with whole(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _running_requests(axes: Any, both: Sequence[Times]) -> None:
    """The running requests over time, of the log and of the simulation."""
    moments = np.linspace(0, max(times.finish_s.max() for times in both), POINTS)
    for (label, style), times in zip(STYLES.items(), both, strict=True):
        axes.plot(moments, times.running_at(moments), style, linewidth=1.2, label=label)
    axes.set(xlabel="time (s)", ylabel="requests running")
    axes.legend(frameon=False)


def _each_request(axes: Any, real: Times, simulated: Times) -> None:
    """Predicted against measured TTFT and latency, a point for each request."""
    axes.loglog(real.ttft_s, simulated.ttft_s, ".", markersize=3, label="TTFT")
    axes.loglog(real.e2e_s, simulated.e2e_s, ".", markersize=3, label="latency")
    low = min(real.ttft_s.min(), simulated.ttft_s.min())
    high = max(real.e2e_s.max(), simulated.e2e_s.max())
    axes.plot((low, high), (low, high), "k-", linewidth=0.8)
    axes.set(xlabel="measured (s)", ylabel="predicted (s)")
    axes.legend(frameon=False)


def _distribution(axes: Any, label: str, both: Sequence[np.ndarray]) -> None:
    """The cumulative distributions of the log's and of the simulation's values."""
    for values, style in zip(both, STYLES.values(), strict=True):
        if len(values):
            axes.plot(
                np.sort(values), np.arange(1, len(values) + 1) / len(values), style, linewidth=1.2
            )
    axes.set(xlabel=label, ylabel="share of requests")
