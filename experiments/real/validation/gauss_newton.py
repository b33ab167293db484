"""Nonlinear least squares by Gauss-Newton steps: times that must not be negative, and a factor."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FARTHEST = 2.0  # a step multiplies or divides the factor by this at most
MAX_ROUNDS = 15
ENOUGH = 1e-3  # share of the squared error that a round must remove to count as progress
PATIENCE = 3  # rounds in a row without progress, after which the fit ends
SHARES = (1.0, 0.5, 0.2)  # of a step that are tried
Matrix = NDArray[np.float64]
Errors = dict[str, float]
Correlations = dict[tuple[str, str], float]


class Point(NamedTuple):
    """Values of the unknowns, the remaining errors, and their derivatives by the unknowns.

    rest: [num_errors]; jacobian: [num_errors, num_unknowns].
    """

    values: Matrix
    rest: Matrix
    jacobian: Matrix

    @property
    def error(self) -> float:
        """The sum of squares."""
        return float(self.rest @ self.rest)


def descend(at: Callable[[Matrix], Point], start: Matrix, scale: Matrix) -> Point:
    """Take Gauss-Newton steps from `start`; return the best point.

    The last unknown is the factor, which a step changes by FARTHEST at most; the others are times
    of at least 0. A step is shortened if that helps. If no length helps, the whole step is taken,
    because another schedule may make a good step look bad. The search ends after PATIENCE rounds
    without progress.
    """
    here = best = at(start)
    rounds_without_progress = 0
    for _ in range(MAX_ROUNDS):
        target = _least_squares(here, scale)
        factor = here.values[-1]
        target[-1] = target[-1].clip(factor / FARTHEST, factor * FARTHEST)
        tried = [at(here.values + share * (target - here.values)) for share in SHARES]
        nearest = min(tried, key=lambda point: point.error)
        here = nearest if nearest.error < here.error else tried[0]
        has_progressed = here.error < best.error * (1 - ENOUGH)
        rounds_without_progress = 0 if has_progressed else rounds_without_progress + 1
        best = min(best, here, key=lambda point: point.error)
        if rounds_without_progress == PATIENCE:
            break
    return best


def _least_squares(here: Point, scale: Matrix) -> Matrix:
    """The minimum of the linear model at `here` with no time below zero.

    Each subset of the times is tried with the other times at zero; the best solution without a
    negative time is returned.
    """
    values, rest, jacobian = here
    target = jacobian @ values - rest
    best, least_error = values, np.inf
    for is_free in _subsets(len(values) - 1):
        free = np.flatnonzero([*is_free, True])
        columns = jacobian[:, free] * scale[free]
        solution = np.zeros(len(values))
        solution[free] = scale[free] * np.linalg.lstsq(columns, target, rcond=None)[0]
        error = float(((jacobian @ solution - target) ** 2).sum())
        if solution[:-1].min(initial=0.0) >= 0 and error < least_error:
            best, least_error = solution, error
    return best


def _subsets(count: int) -> Iterator[list[bool]]:
    """The subsets of `count` things, as flags, the smallest subsets first."""
    for size in range(count + 1):
        for members in combinations(range(count), size):
            yield [thing in members for thing in range(count)]


def uncertainty(
    labels: Sequence[str], rest: Matrix, jacobian: Matrix, scale: Matrix
) -> tuple[Errors, Correlations]:
    """Standard errors and correlations, assuming that the requests' errors are independent."""
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
