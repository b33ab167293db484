"""The trend of waiting times while requests arrive: a queue that grows has no end.

A server that falls a few percent behind serves almost as many requests as arrive, and only the
slope of the waiting time over the arrivals distinguishes it from one that keeps up. The test looks
at the second half of the arrivals, which a start from an empty server no longer shapes, and asks
for three things: the slope of batch means is clear of their scatter, it is MIN_GROWTH or more, and
the queue has never drained meanwhile. Queues of Poisson arrivals with exponential service times,
loaded to at most 95%, pass as growing in up to 2 of 100 runs of 1,000 requests.
"""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

NUM_BATCHES = 10
MIN_IN_BATCH = 5  # requests
CLEAR = 4.0  # standard errors of the slope
MIN_GROWTH = 0.01  # seconds of waiting for each second of arrivals
DRAINED = 1 / 3  # of the mean waiting time; a queue that grows from nothing stays above 2/3 of it
Seconds = NDArray[np.float64]


def wait_growth(arrival_s: Seconds, wait_s: Seconds) -> float | None:
    """Seconds by which the waiting time grows for each second of arrivals; None if it does not.

    In any order. wait_s: NaN for a request that was not served, which the test leaves out.
    """
    is_late = (arrival_s > arrival_s.max(initial=0.0) / 2) & ~np.isnan(wait_s)
    order = np.argsort(arrival_s[is_late], kind="stable")
    arrival_s, wait_s = arrival_s[is_late][order], wait_s[is_late][order]
    if len(wait_s) < NUM_BATCHES * MIN_IN_BATCH or wait_s.min() < DRAINED * wait_s.mean():
        return None
    times, waits = (_batch_means(values) for values in (arrival_s, wait_s))
    slope, error = _slope(times, waits)
    return slope if slope >= MIN_GROWTH and slope > CLEAR * error else None


def _batch_means(values: Seconds) -> Seconds:
    return np.array([part.mean() for part in np.array_split(values, NUM_BATCHES)])


def _slope(x: Seconds, y: Seconds) -> tuple[float, float]:
    """The least-squares slope of y over x, and its standard error."""
    dx, dy = x - x.mean(), y - y.mean()
    squares = float((dx**2).sum())
    if not squares:
        return 0.0, 0.0
    slope = float((dx * dy).sum()) / squares
    residual = float(((dy - slope * dx) ** 2).sum())
    return slope, sqrt(residual / (len(x) - 2) / squares)
