"""The errors of costs between deployments: costs of another origin, such as those derived for
another GPU, have errors of their own, which may be more than the difference that was found.
"""

from functools import cache

from testbed.experiments.plan.space import Candidate
from testbed.run.config import RunConfig
from testbed.run.machine import cost_of
from testbed.run.summaries import PROFILE, RUN, origin_of, profile_of
from testbed.study.cost_spread import error_of


def error_between(candidate: Candidate, other: Candidate) -> float:
    """The relative error of the ratio of two deployments' rates: the tested errors of both costs,
    or 0 of costs of the same origin, whose errors go together.
    """
    if _origins(candidate) == _origins(other):
        return 0.0
    return _error(candidate) + _error(other)


@cache
def _origins(candidate: Candidate) -> frozenset[str]:
    return frozenset(map(_origin, _simulated(candidate)))


@cache
def _error(candidate: Candidate) -> float:
    """The largest of its engines; 0 of those that are measured by running them."""
    return max(map(error_of, _simulated(candidate)), default=0.0)


def _simulated(candidate: Candidate) -> list[RunConfig]:
    """One engine for each kind of server, if they are simulated."""
    kinds = {(of.server.gpu.name, of.server.num_gpus): of for of in candidate.engines}
    return [] if candidate.config.engine is not None else [*kinds.values()]


def _origin(config: RunConfig) -> str:
    gpu = {"gpu": config.server.gpu.name}
    return origin_of({PROFILE: profile_of(cost_of(config)), RUN: gpu})
