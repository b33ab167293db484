"""Least squares by Gauss and Newton, where each evaluation is a simulation whose schedule may jump."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FARTHEST = 2.0  # times as large or as small in one step
MAX_ROUNDS = 15
ENOUGH, PATIENCE = 1e-3, 3  # a round that takes less of the squared error away has not helped
SHARES = (1.0, 0.5, 0.2)
Matrix = NDArray[np.float64]


class Point(NamedTuple):
    """Unknowns, the errors that they leave, and how each of them moves these."""

    values: Matrix
    rest: Matrix
    jacobian: Matrix

    @property
    def error(self) -> float:
        """The sum of squares."""
        return float(self.rest @ self.rest)


def descend(at: Callable[[Matrix], Point], start: Matrix, scale: Matrix, num_times: int) -> Point:
    """Steps of Gauss and Newton from `start`, the best point kept; of the unknowns the first num_times are no less than
    0, and any other changes by a factor of FARTHEST at most. A step is shortened where that helps. Where nothing helps
    it is taken whole, for another schedule may make a good step look bad; after PATIENCE such steps in a row it
    ends."""
    here = best = at(start)
    waited = 0
    for _ in range(MAX_ROUNDS):
        aim, rest = _least(here, scale, num_times), here.values[num_times:]
        aim[num_times:] = np.clip(aim[num_times:], rest / FARTHEST, rest * FARTHEST)
        tried = [at(here.values + share * (aim - here.values)) for share in SHARES]
        found = min(tried, key=lambda point: point.error)
        here = found if found.error < here.error else tried[0]
        waited = 0 if here.error < best.error * (1 - ENOUGH) else waited + 1
        best = min(best, here, key=lambda point: point.error)
        if waited == PATIENCE:
            break
    return best


def _least(here: Point, scale: Matrix, num_times: int) -> Matrix:
    """Where the linear model has its least squares with no time below zero: of all subsets above zero, the best."""
    values, rest, jacobian = here
    target = jacobian @ values - rest
    always = list(range(num_times, len(values)))
    best, least = values, np.inf
    for size in range(num_times + 1):
        for above in ([*some, *always] for some in combinations(range(num_times), size)):
            found = np.zeros(len(values))
            found[above] = scale[above] * np.linalg.lstsq(jacobian[:, above] * scale[above], target, rcond=None)[0]
            error = float(((jacobian @ found - target) ** 2).sum())
            if found[:num_times].min(initial=0.0) >= 0 and error < least:
                best, least = found, error
    return best


def uncertainty(
    labels: Sequence[str], rest: Matrix, jacobian: Matrix, scale: Matrix
) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Standard errors and correlations, as if the requests' errors were independent of each other."""
    freedom = max(1, len(rest) - len(labels))
    scaled = jacobian * scale
    covariance = np.linalg.pinv(scaled.T @ scaled) * float(rest @ rest) / freedom
    spread = np.sqrt(np.diag(covariance))
    correlations = {
        (labels[i], labels[j]): float(covariance[i, j] / (spread[i] * spread[j]))
        for i, j in combinations(range(len(labels)), 2)
        if spread[i] > 0 and spread[j] > 0
    }
    return dict(zip(labels, (spread * scale).tolist(), strict=True)), correlations
