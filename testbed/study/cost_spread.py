"""The spread of a run's costs, and runs with costs that are off by as much.

A profile of whole iterations says what it was off by at sizes of batch that it was fitted without:
launches, and decodes alone. Such an error holds for a whole run, which stays near one size, and so
does the slowness of its host, which drifts by minutes (testbed/cost/host_drift.py). Derived
costs and rooflines are moved by the latency's error of such costs when tested (the largest of the
medians that an answer says: of its GPU's profiles, and of all), others by COST_ERROR, and none by
less: what is derived from measurements has their error too.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import hypot
from statistics import NormalDist
from typing import NamedTuple

from testbed.cost.host_drift import DRIFT, OF_REFRESHED, REFRESHED, drift_of_runs
from testbed.cost.known_profiles import NAME
from testbed.cost.model import CostModel
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import SYSTEM, THIS_ENGINE
from testbed.run.config import RunConfig
from testbed.run.cost_words import left_out_error
from testbed.run.machine import cost_of
from testbed.run.parts import Part

COST_ERROR = 0.03
RESAMPLINGS = 20
REPLICATIONS = 5  # of a run by a host whose slowness changes
MOVED_S = 0.010  # arrivals are moved by at most so much, either way
# The deviation (log) of launches of prompts on four hosts with the same GPU and vLLM: 11 to 21 ms
# within the CUDA graphs, 25 to 50 ms beyond (experiments/ACCURACY.md)
OF_OTHER_HOSTS = 0.25
# No factors in common with RESAMPLINGS: no launch error goes with one of computing, or a moment
STRIDE, OF_MOMENTS = 7, 3
OUTERMOST = 1.96  # deviations that 5% of a normal distribution are beyond


class Spread(NamedTuple):
    """Relative standard deviations of the launches of these costs, and of what the GPU computes.

    of_launches: where that of the launches comes from.
    """

    cost: ProfileCost
    launches: float
    computing: float
    of_launches: str

    def __str__(self) -> str:
        return f"launches {self.launches:.1%}{self.of_launches}, computing {self.computing:.1%}"

    def varied(
        self, of_launches: float, of_computing: float, begun: float | None = None
    ) -> ProfileCost:
        """The costs with launches of_launches and all else of_computing deviations away; begun: see
        `ProfileCost.varied`.
        """
        return self.cost.varied(
            launches=max(0.0, 1 + self.launches * of_launches),
            computing=1 + self.computing * of_computing,
            begun=begun,
        )


class Draw(NamedTuple):
    """A run that differs: its costs in place of the config's (None: unchanged), how many times as
    long all costs take, and the seed of its moved arrivals (None: unmoved).
    """

    cost: CostModel | None = None
    slowness: float = 1.0
    seed: int | None = None

    def of(self, config: RunConfig) -> RunConfig:
        """The config with its costs."""
        return config if self.cost is None else replace(config, cost=Part(self.cost))


def spread_of(cost: CostModel) -> Spread | None:
    """Standard deviations of the errors of such costs; None if nothing says it. The launches of
    a profile that ships are another host's.
    """
    fit = cost.fit or {}
    if not isinstance(cost, ProfileCost) or "left_out" not in fit:  # no other costs have launches
        return None
    launches, computing = fit["left_out"]["launches"], fit["left_out"]["computing"]
    origin = cost.fingerprint or {}
    is_elsewhere = NAME in origin and origin.get(SYSTEM) != THIS_ENGINE
    if is_elsewhere and launches < OF_OTHER_HOSTS:
        own = f" between hosts ({launches:.1%} on the profile's own)"
        return Spread(cost, OF_OTHER_HOSTS, computing, own)
    drift = drift_of_runs(fit)
    known = "" if DRIFT in fit else ", not known of this one"
    apart = f" (sizes left out {launches:.1%}, the host's drift {drift:.1%}{known})"
    total = hypot(launches, drift)
    if REFRESHED in origin and not is_elsewhere and total > OF_REFRESHED:
        return Spread(cost, OF_REFRESHED, computing, " (of a sweep just before)")
    return Spread(cost, total, computing, apart)


def error_of(config: RunConfig) -> float:
    """The relative error by which costs without a spread are moved, up and down."""
    error = left_out_error(cost_of(config), config.server)
    return max(COST_ERROR, error or 0.0)


def draws(config: RunConfig) -> Iterator[Draw]:
    """The runs that an interval is of, beside the unchanged one."""
    spread = spread_of(cost_of(config))
    if spread is None:
        error = error_of(config)
        yield from (Draw(slowness=factor) for factor in (1 - error, 1 + error))
        yield from (Draw(seed=seed) for seed in range(RESAMPLINGS))
        return
    deviations = [NormalDist().inv_cdf((i + 0.5) / RESAMPLINGS) for i in range(RESAMPLINGS)]
    for i, deviation in enumerate(deviations):
        other = deviations[STRIDE * i % RESAMPLINGS]
        begun = OF_MOMENTS * i % RESAMPLINGS / RESAMPLINGS
        yield Draw(spread.varied(deviation, other, begun), seed=i)


def replications(config: RunConfig) -> Iterator[RunConfig]:
    """The run, begun at other moments of a host whose slowness changes; else the run alone."""
    cost = cost_of(config)
    if not isinstance(cost, ProfileCost) or cost.slowness is None:
        yield config
        return
    for i in range(REPLICATIONS):
        begun = cost.varied(launches=1.0, computing=1.0, begun=i / REPLICATIONS)
        yield replace(config, cost=Part(begun))


def extremes(config: RunConfig) -> Iterator[Draw]:
    """Costs that are short, and long, at the ends of what they may be."""
    spread = spread_of(cost_of(config))
    for sign in (-1, 1):
        if spread is None:
            yield Draw(slowness=1 + sign * error_of(config))
        else:
            yield Draw(spread.varied(sign * OUTERMOST, sign * OUTERMOST))


def rule_of_extremes(config: RunConfig) -> str:
    """The varied values of `extremes`, in words."""
    spread = spread_of(cost_of(config))
    if spread is None:
        return _by_one_factor(config)
    return f"costs short and long by {OUTERMOST} standard deviations of their errors ({spread})"


def rule(config: RunConfig) -> str:
    """The varied values, in words."""
    moved = f"{RESAMPLINGS} times arrivals moved by up to {1000 * MOVED_S:.0f} ms"
    spread = spread_of(cost_of(config))
    if spread is None:
        return f"{_by_one_factor(config)}, and {moved}"
    return f"{moved} and costs drawn by their errors (standard deviations: {spread})"


def _by_one_factor(config: RunConfig) -> str:
    error = error_of(config)
    why = " (such costs' largest median error of latency when tested)" if error > COST_ERROR else ""
    return f"all costs {error:.0%} up and down{why}"
