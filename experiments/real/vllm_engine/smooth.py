"""Curves through medians of noisy times, in which the noise of one point makes no kink."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Fit = Callable[[Floats, Floats], Floats]  # the times of terms: a row of terms for each sum
APART = 1.5  # points nearer than that have a slope of noise
ROUNDS = 60  # of weights, until least squares are least absolute errors
NEAREST = 1e-3  # a smaller relative error counts as this one


def median_of_neighbours(values: Sequence[float]) -> Floats:
    """Each value replaced by the median of itself and its two neighbours; the ends stay."""
    middle = np.array(values, dtype=np.float64)
    if len(middle) > 2:
        middle[1:-1] = np.median([middle[:-2], middle[1:-1], middle[2:]], axis=0)
    return middle


def rising(values: Sequence[float]) -> Floats:
    """Without lone outliers, and never falling: a larger batch takes no less time."""
    return np.maximum.accumulate(median_of_neighbours(values))


def slope(x: Floats, y: Floats) -> float | None:
    """The median slope between points whose x differ by a factor of APART (Theil and Sen), at least
    0; None if no two do.
    """
    order = np.argsort(x)
    x, y = x[order], y[order]
    low, high = np.triu_indices(len(x), 1)
    apart = x[high] >= APART * x[low]
    if not apart.any():
        return None
    slopes = (y[high] - y[low])[apart] / (x[high] - x[low])[apart]
    return max(0.0, float(np.median(slopes)))


def least_squares(terms: Floats, times: Floats) -> Floats:
    """The times of the terms whose sums have the least squares of relative errors."""
    found = np.linalg.lstsq(terms / times[:, None], np.ones(len(times)), rcond=None)[0]
    return np.asarray(found, np.float64)


def least_absolute(terms: Floats, times: Floats) -> Floats:
    """The times of the terms, at least 0, whose sums have the least absolute relative errors.

    terms: a row for each of `times` (above 0). A term that would be negative is left out.
    """
    relative = terms / times[:, None]
    kept = list(range(terms.shape[1]))
    found = np.zeros(terms.shape[1])
    while kept:
        found[:] = 0.0
        found[kept] = _least_absolute(relative[:, kept])
        lowest = min(kept, key=lambda term: float(found[term]))
        if found[lowest] >= 0:
            break
        kept.remove(lowest)
    return found


def _least_absolute(relative: Floats) -> Floats:
    """Weights by which the columns sum to 1 with the least absolute errors."""
    weights = np.ones(len(relative))
    for _ in range(ROUNDS):
        found = np.linalg.lstsq(relative * weights[:, None], weights, rcond=None)[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(1 - relative @ found), NEAREST))
    return np.asarray(found, np.float64)


def lower_hull(points: Mapping[int, float]) -> dict[int, float]:
    """The largest convex curve below the points, at their x.

    The time of matrix products is convex in the tokens: first the weights' bytes, then the FLOPs.
    Noise, and a host that is slower than its GPU, lie above.
    """
    hull = list[tuple[int, float]]()
    for x, y in sorted(points.items()):
        while len(hull) > 1 and _is_above(hull[-1], hull[-2], (x, y)):
            hull.pop()
        hull.append((x, y))
    corners, heights = zip(*hull, strict=True)
    return {x: float(np.interp(x, corners, heights)) for x in sorted(points)}


def _is_above(middle: tuple[int, float], left: tuple[int, float], right: tuple[int, float]) -> bool:
    """True if a point is not below the line between its neighbours."""
    (x, y), (x0, y0), (x1, y1) = middle, left, right
    return (y - y0) * (x1 - x0) >= (y1 - y0) * (x - x0)
