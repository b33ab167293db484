"""The errors of costs between deployments: costs that come another way have errors of their own,
which may be more than the difference that was found.
"""

from functools import cache

from testbed.experiments.plan.space import Candidate
from testbed.run.machine import cost_of
from testbed.run.summaries import PROFILE, origin_of, profile_of
from testbed.study.cost_spread import error_of


def error_between(candidate: Candidate, other: Candidate) -> float:
    """The relative error of the ratio of two deployments' rates: the tested errors of both costs,
    or 0 of costs that come the same way, whose errors go together.
    """
    if _origin(candidate) == _origin(other):
        return 0.0
    return _error(candidate) + _error(other)


@cache
def _origin(candidate: Candidate) -> str:
    if candidate.config.engine is not None:
        return ""  # measured by running it
    return origin_of({PROFILE: profile_of(cost_of(candidate.config))})


@cache
def _error(candidate: Candidate) -> float:
    return 0.0 if candidate.config.engine is not None else error_of(candidate.config)
