"""Percentiles of values, by linear interpolation between the two nearest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def percentiles(values: NDArray[Any], percents: Sequence[float]) -> list[float]:
    """`np.percentile(values, percents)`, bit for bit, of at least one value: NumPy's own function
    imports numpy.ma, which takes as long as a short run.
    """
    last = len(values) - 1
    places = np.asarray(percents) / 100 * last
    below = places.astype(np.intp)
    above = np.minimum(below + 1, last)
    ordered = np.partition(values, np.concatenate([below, above]))
    low, high, part = ordered[below], ordered[above], places - below
    # from the nearer of both values, as NumPy does
    exact = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    found: list[float] = exact.tolist()
    return found
