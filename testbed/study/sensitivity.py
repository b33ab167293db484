"""The sensitivity of a simulated figure to costs and arrival times, which are known inexactly.

Near the load at which a server becomes full, a small error of the costs becomes a large one of the
latencies, and a server differs from itself by as much when it serves the same requests again.
testbed.study.cost_spread has the varied values: the costs, by what they were off by if that was
measured, and the arrivals, RESAMPLINGS times by up to MOVED_S. The interval of a figure goes from
its smallest to its largest value over these runs and the unchanged one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.run.config import RunConfig, Slo
from testbed.run.parts import Part
from testbed.run.simulate import run
from testbed.run.workload import make_workload
from testbed.study.cost_spread import MOVED_S, Draw, draws, extremes
from testbed.study.knee import highest_rate

NEAR = 1.1  # the search for a varied capacity begins within this factor of the unchanged one
Interval = tuple[float, float]
Figures = Callable[[Mapping[str, Any], float], Mapping[str, float]]  # of a summary, and its unit
# Figures of a run that intervals are of, in s: a latency of its summary, and which value of it.
FIGURES = {
    "e2e_mean_s": ("e2e_s", "mean"),
    "ttft_mean_s": ("ttft_s", "mean"),
    "ttft_p50_s": ("ttft_s", "p50"),
    "tpot_mean_s": ("tpot_s", "mean"),
}
PREEMPTIONS = "preemptions"


@dataclass(frozen=True)
class CapacityIntervals:
    """Smallest and largest values.

    rate: the highest rate that meets the SLO, in requests/s, over the variations of costs.
    share_inside: the share of requests that meets the SLO at the highest rate of the unchanged
    costs, over the variations of costs and of arrivals.
    """

    rate: Interval
    share_inside: Interval


def moved_s(arrival_s: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """The times (s), each moved at random by up to MOVED_S, but not to before 0. They may be out of
    order.
    """
    moved = np.random.default_rng(seed).uniform(-MOVED_S, MOVED_S, len(arrival_s))
    return np.maximum(arrival_s + moved, 0)


def capacity_intervals(
    config: RunConfig, rate: float, needed: float, precision: float
) -> CapacityIntervals:
    """The intervals around `rate` (requests/s), the highest at which a share of `needed` of all
    requests meets the SLO. The rate of `config` does not matter.

    Raises:
        InputError: not all times of the run scale with its costs.
    """
    check_scalable(config)
    unchanged = at_rate(config, rate)
    shares = [share_inside(varied) for varied in (unchanged, *variations(unchanged))]
    varied_rates = [_rate_with(draw, config, rate, needed, precision) for draw in extremes(config)]
    rates = [rate, *varied_rates]
    return CapacityIntervals((min(rates), max(rates)), (min(shares), max(shares)))


def figures_of(summary: Mapping[str, Any], slowness: float = 1.0) -> dict[str, float]:
    """FIGURES and preemptions of a run's summary, without those that it has no request for.
    slowness: the run's unit of time, in the usual one.
    """
    latencies = {name: summary[latency][value] for name, (latency, value) in FIGURES.items()}
    present = {name: slowness * x for name, x in latencies.items() if x is not None}
    return present | {PREEMPTIONS: float(sum(summary["preemptions"].values()))}


def run_intervals(
    config: RunConfig, *summaries: Mapping[str, Any], figures_of: Figures = figures_of
) -> dict[str, Interval]:
    """The interval of each of a run's figures. summaries: of the unchanged run, or of its
    replications.

    Raises:
        InputError: not all times of the run scale with its costs.
    """
    check_scalable(config)
    every = [figures_of(summary, 1.0) for summary in summaries]
    for varied, draw in zip(variations(config), draws(config), strict=True):
        every.append(figures_of(run(varied).summary, draw.slowness))
    return {
        name: (min(figures[name] for figures in every), max(figures[name] for figures in every))
        for name in every[0]
        if all(name in figures for figures in every)
    }


def check_scalable(config: RunConfig) -> None:
    """Raise InputError for a run with other times than those of costs and arrivals: on a GPU, with
    faults, or with requests that wait for answers.
    """
    for name in ("engine", "faults"):
        if getattr(config, name) is not None:
            raise InputError(
                key=name, problem="--sensitivity scales the costs of plain simulations alone"
            )
    if isinstance(make_workload(config), AnswerDrivenWorkload):
        raise InputError(
            key="arrivals",
            problem="--sensitivity moves arrivals, and these wait for answers",
            remedy="choose arrivals=poisson, or another process with times of its own",
        )


def at_rate(config: RunConfig, rate: float) -> RunConfig:
    """The run at another rate (requests/s)."""
    return replace(config, arrivals=config.arrivals.updated(rate=rate))


def variations(config: RunConfig) -> Iterator[RunConfig]:
    """The run with other costs and other arrivals."""
    workload = make_workload(config)
    for draw in draws(config):
        varied = draw.of(config)
        if draw.seed is not None:
            varied = replace(varied, trace=Part(moved_workload(workload, draw.seed)))
        yield with_costs(varied, draw.slowness) if draw.slowness != 1 else varied


def with_costs(config: RunConfig, factor: float) -> RunConfig:
    """A run that is equivalent to one with costs `factor` times as long, in a longer unit of time:
    the costs stay, and arrivals, objectives and the waits of scheduler and router are divided.
    """
    workload = make_workload(config)
    arrival_ps = np.rint(workload.arrival_ps / factor).astype(np.int64)
    limits = {
        name: None if limit is None else limit / factor for name, limit in config.slo.limits.items()
    }
    return replace(
        config,
        trace=Part(replace(workload, arrival_ps=arrival_ps)),
        slo=Slo(**limits),
        scheduler=_divided(config.scheduler, factor),
        router=None if config.router is None else _divided(config.router, factor),
    )


def _divided(part: Part, factor: float) -> Part:
    """The part, with each parameter in seconds divided."""
    times = {
        name: value / factor
        for name, value in part.parameters.items()
        if name.endswith("_s") and isinstance(value, int | float)
    }
    return part.updated(**times)


def moved_workload(workload: Workload, seed: int) -> Workload:
    """The same requests at moved times, in their order."""
    arrival_ps = np.rint(moved_s(workload.arrival_ps / PS, seed) * PS).astype(np.int64)
    order = np.argsort(arrival_ps, kind="stable")
    return replace(workload, rows=workload.rows.take(order), arrival_ps=arrival_ps[order])


def share_inside(config: RunConfig) -> float:
    """The share of the requests that meets the SLO; 0 if none does."""
    return float(run(config).summary["slo"]["share_inside"] or 0.0)


def _rate_with(
    draw: Draw, config: RunConfig, rate: float, needed: float, precision: float
) -> float:
    """The capacity with the drawn costs."""

    def share_at(tried: float) -> float:
        return share_inside(with_costs(draw.of(at_rate(config, tried)), draw.slowness))

    return highest_rate(share_at, needed, rate / NEAR, rate * NEAR, precision)
