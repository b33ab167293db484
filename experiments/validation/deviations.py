"""The metrics that compare a simulated server with a real one (experiments/REAL_SERVERS.md), and
their figure.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.config import RunConfig
from testbed.experiments.runs.whole_files import whole
from testbed.experiments.validation.log_replay import Replayed
from testbed.experiments.validation.logged_server import high_water
from testbed.identity import content_hash
from testbed.metrics import spread
from testbed.traces.files import plain_or_packed, read_table, seconds
from testbed.traces.vllm_log import Times, VllmLog

KINDS = ("ttft_s", "tpot_s", "e2e_s")
MEASURES = ("mean", "p50", "p90", "p99")
PARTS = 4
NAMES = dict(zip(KINDS, ("TTFT", "TPOT", "latency"), strict=True))
FILLED = 0.95  # of the pool: memory was short
POINTS = 400
STYLES = {"real": "k-", "simulated": "C0--"}


class Compared(NamedTuple):
    """One metric of one log."""

    log: str
    metric: str
    real: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """How far the simulation is off, in percent of the real value."""
        if self.real == 0:
            return 0.0 if self.simulated == 0 else float("inf")
        return 100 * (self.simulated / self.real - 1)


def metrics(times: Times) -> dict[str, float]:
    """TTFT, TPOT and latency by mean and percentile where there are any, and output tokens a
    second.
    """
    spreads = {kind: spread(getattr(times, kind)) for kind in KINDS if len(getattr(times, kind))}
    latencies: dict[str, Any] = {
        f"{kind}_{name}": values[name] for kind, values in spreads.items() for name in MEASURES
    }
    return {**latencies, "tokens_per_s": float(times.output_len.sum() / times.finish_s.max())}


def compare(log: str, real: Times, simulated: Times, label: str = "") -> list[Compared]:
    """A row for each metric that both have, and for the requests running where the log's folder has
    timeseries.csv. label is what the rows are called, by default the log's path.
    """
    ours, label = metrics(simulated), label or log
    rows = [
        Compared(label, name, value, ours[name])
        for name, value in metrics(real).items()
        if name in ours
    ]
    if samples := log and plain_or_packed(Path(log).with_name("timeseries.csv")):
        moments = np.array(
            seconds(str(samples), "t", read_table(str(samples), ["t", "running"])["t"])
        )
        means = (float(times.running_at(moments).mean()) for times in (real, simulated))
        rows.append(Compared(label, "running_mean", *means))
    return rows


def over_time(real: Times, simulated: Times) -> Iterator[tuple[str, ...]]:
    """When each part of the requests arrived, and the errors of its mean TTFT, TPOT and latency in
    percent.
    """
    for part in np.array_split(np.arange(len(real.output_len)), PARTS):
        if len(part):
            here, there = real.take(part), simulated.take(part)
            rows = {row.metric: f"{row.error_percent:+.1f}%" for row in compare("", here, there)}
            when = f"{here.arrival_s[0]:.1f} to {here.arrival_s[-1]:.1f} s"
            yield when, *(rows.get(f"{kind}_mean", "-") for kind in KINDS)


def conclude(log: VllmLog, config: RunConfig, replayed: Replayed) -> Iterator[str]:
    """Lines for the end of the report."""
    real, rows = log.times, compare("", log.times, replayed.times)
    errors = {row.metric: abs(row.error_percent) for row in rows}
    served = f"{config.model.name} on {config.server.num_gpus} x {config.server.gpu.name}"
    rate = len(real.arrival_s) / max(real.arrival_s[-1], 1e-9)
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
    yield f"\n{log.path}: what this validation supports"
    yield f"  {served} at about {rate:.2g} requests/s, up to {running} of them running, {lengths}:"
    yield f"  errors of the means: {means}; of p50 and p90, the worse one: {tails}"
    yield "what it does not support"
    if content_hash(log.path) in replayed.measured.get("software_fitted_on", {}).values():
        yield "  a prediction: times were fitted on this very log; validate another one"
    mark = high_water(log, replayed.block_size, config.scheduler.parameters.get("max_num_seqs"))
    share, most = mark.blocks / replayed.num_blocks, "the log's requests used at most"
    if share < FILLED and not replayed.preemptions:
        yield f"  memory that runs short: {most} {share:.0%} of the pool, and none was preempted"
    count = len(real.output_len)
    yield f"  p99: {count:,} requests have {count / 100:.3g} beyond it"
    yield (
        "  other rates, lengths, models, GPUs and ways to manage memory: nothing here was "
        "compared with them"
    )


def draw(logs: Sequence[tuple[str, Times, Times]], path: Path) -> None:
    """For each log, a row of panels: requests running over time, how TTFT and TPOT are distributed,
    and what was predicted for each request against what was measured.
    """
    from matplotlib.figure import Figure  # which takes a second to import

    figure = Figure(figsize=(14.5, 2.8 * len(logs)), layout="constrained")
    axes = figure.subplots(len(logs), 4, squeeze=False)
    for (running, ttft, tpot, each), (name, *both) in zip(axes, logs, strict=True):
        moments = np.linspace(0, max(times.finish_s.max() for times in both), POINTS)
        for (label, style), times in zip(STYLES.items(), both, strict=True):
            running.plot(moments, times.running_at(moments), style, linewidth=1.2, label=label)
        running.set(
            title="/".join(Path(name).parts[-2:])[-40:],
            xlabel="time (s)",
            ylabel="requests running",
        )
        running.legend(frameon=False)
        _distribution(ttft, "TTFT (s)", [times.ttft_s for times in both])
        _distribution(tpot, "TPOT (ms)", [1000 * times.tpot_s for times in both])
        real, simulated = both
        for label, *pair in (
            ("TTFT", real.ttft_s, simulated.ttft_s),
            ("latency", real.e2e_s, simulated.e2e_s),
        ):
            each.loglog(*pair, ".", markersize=3, label=label)
        low, high = (
            min(real.ttft_s.min(), simulated.ttft_s.min()),
            max(real.e2e_s.max(), simulated.e2e_s.max()),
        )
        each.plot((low, high), (low, high), "k-", linewidth=0.8)
        each.set(xlabel="measured (s)", ylabel="predicted (s)")
        each.legend(frameon=False)
    with whole(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _distribution(axes: Any, label: str, both: Sequence[np.ndarray]) -> None:
    for values, style in zip(both, STYLES.values(), strict=True):
        if len(values):
            axes.plot(
                np.sort(values), np.arange(1, len(values) + 1) / len(values), style, linewidth=1.2
            )
    axes.set(xlabel=label, ylabel="share of requests")
