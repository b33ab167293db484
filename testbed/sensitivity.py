"""How much a simulated figure depends on what nobody knows exactly.

Near the load at which a server becomes full, a small error of the costs becomes a large one of the
latencies. The rule is fixed, and looks at no measurement: all costs COST_ERROR up and down, and
RESAMPLINGS times arrivals that are moved at random by up to MOVED_S. The interval of a figure goes
from the smallest to the largest value of these runs and of the one as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from testbed.config import RunConfig, Slo
from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.knee import highest_rate
from testbed.parts import Part
from testbed.run import run
from testbed.workload import make_workload

COST_ERROR = 0.03
MOVED_S = 0.010  # arrivals are moved by at most so much, either way
RESAMPLINGS = 20
FACTORS = (1 - COST_ERROR, 1 + COST_ERROR)
NEAR = 1.1  # a first guess of rates that lie so near
RULE = (
    f"all costs {COST_ERROR:.0%} up and down, and {RESAMPLINGS} times arrivals moved by up to "
    f"{1000 * MOVED_S:.0f} ms"
)
Interval = tuple[float, float]


@dataclass(frozen=True)
class CapacityIntervals:
    """Smallest and largest values. rate: requests/s that meet the SLO, over costs alone.
    share_inside: of the requests at the rate of the costs as they are, over costs and arrivals.
    """

    rate: Interval
    share_inside: Interval


def moved_s(arrival_s: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Times (s) moved by up to MOVED_S either way, none before 0; not in order."""
    moved = np.random.default_rng(seed).uniform(-MOVED_S, MOVED_S, len(arrival_s))
    return np.maximum(arrival_s + moved, 0)


def capacity_intervals(
    config: RunConfig, rate: float, needed: float, precision: float
) -> CapacityIntervals:
    """Around the highest rate (requests/s) at which a share of `needed` requests meets the SLO.

    config: of any rate. Raises InputError for a run whose times do not all scale with its costs.
    """
    check_scalable(config)
    here = at_rate(config, rate)
    shares = [share_inside(varied) for varied in (here, *variations(here))]
    rates = [rate, *(_rate_with(factor, config, rate, needed, precision) for factor in FACTORS)]
    return CapacityIntervals((min(rates), max(rates)), (min(shares), max(shares)))


def check_scalable(config: RunConfig) -> None:
    """Raise InputError for a run that has times of its own, or that is no simulation."""
    for name in ("engine", "faults"):
        if getattr(config, name) is not None:
            raise InputError(f"{name}: --sensitivity scales the costs of plain simulations alone")
    if isinstance(make_workload(config), AnswerDrivenWorkload):
        raise InputError(
            "arrivals: --sensitivity moves arrivals, and these wait for answers (choose "
            "arrivals=poisson, or another process with times of its own)"
        )


def at_rate(config: RunConfig, rate: float) -> RunConfig:
    """The run at another rate (requests/s)."""
    return replace(config, arrivals=config.arrivals.updated(rate=rate))


def variations(config: RunConfig) -> Iterator[RunConfig]:
    """The run with other costs, then with other arrivals."""
    for factor in FACTORS:
        yield with_costs(config, factor)
    workload = make_workload(config)
    for seed in range(RESAMPLINGS):
        yield replace(config, trace=Part(moved_workload(workload, seed)))


def with_costs(config: RunConfig, factor: float) -> RunConfig:
    """The run with all times of the server `factor` times as long, in a unit of time that is as
    much longer: arrivals, objectives and what scheduler and router wait are divided instead.
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
    """The part with its own times, the parameters in s, divided."""
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
    """The share of the requests that meets the SLO; 0 where none does."""
    return float(run(config).summary["slo"]["share_inside"] or 0.0)


def _rate_with(
    factor: float, config: RunConfig, rate: float, needed: float, precision: float
) -> float:
    """The capacity with costs `factor` times as long."""

    def share_at(tried: float) -> float:
        return share_inside(with_costs(at_rate(config, tried), factor))

    return highest_rate(share_at, needed, rate / NEAR, rate * NEAR, precision)
