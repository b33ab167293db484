"""The errors of costs between deployments: costs of another origin, such as those derived for
another GPU or for several, have errors of their own, which may be more than the difference that
was found.
"""

from functools import cache

from testbed.experiments.plan.space import Candidate
from testbed.run.config import RunConfig
from testbed.run.machine import cost_of
from testbed.run.summaries import PROFILE, RUN, origin_of, profile_of
from testbed.study.cost_spread import error_of

NOT_COMPARABLE = "not comparable"


def error_between(candidate: Candidate, other: Candidate) -> float:
    """The relative error of the ratio of two deployments' rates: the tested errors of both costs,
    or 0 of costs of the same origin, whose errors go together.
    """
    if _origins(candidate) == _origins(other):
        return 0.0
    return _error(candidate) + _error(other)


def hide(error: float, extra: float) -> bool:
    """True if errors of costs of another origin may turn a difference. error: of `error_between`.
    extra: by which the larger of both numbers exceeds the smaller one, as a share of that.
    """
    return extra < error


def of_both(error: float) -> str:
    """The errors of costs of another origin in words; empty if there are none."""
    return f" (costs of another origin; {error:.0%} of error for both)" if error else ""


def not_comparable(error: float) -> str:
    """The words on a difference that these errors hide."""
    return f"{NOT_COMPARABLE}{of_both(error)}"


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
    server = {"gpu": config.server.gpu.name, "num_gpus": config.server.num_gpus}
    return origin_of({PROFILE: profile_of(cost_of(config)), RUN: server})
