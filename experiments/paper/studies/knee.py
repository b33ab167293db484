"""The highest rate that a system sustains, by bisection."""

from collections.abc import Callable
from math import sqrt

MAX_STEPS = 40
OUTWARD = 1.25  # beyond the ends of a grid
FARTHER = 1.5  # a guess that fails is followed by a wider one


def sustained_rate(holds: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The rate, within a factor of 1 + precision, above which `holds` fails.

    low and high are a first guess, each moved outward until it is one that holds and one that fails. A load close to
    the knee may hold at one rate and fail at a lower one; the answer is then one of the places where that changes.
    """
    for _ in range(MAX_STEPS):
        if holds(low):
            break
        low, high = low / (high / low) ** FARTHER, low
    else:
        raise ValueError(f"not even {low:.3g} requests/s are sustained")
    for _ in range(MAX_STEPS):
        if not holds(high):
            break
        low, high = high, high * (high / low) ** FARTHER
    else:
        raise ValueError(f"{high:.3g} requests/s are sustained; there is no knee")
    while high > low * (1 + precision):
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return sqrt(low * high)


def bracket(rates: list[float], holds: Callable[[float], bool]) -> tuple[float, float]:
    """Neighbours in a sorted grid between which `holds` first fails; its ends where it never or always does."""
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(rates[middle]) else (low, middle)
    if high == 0:
        return rates[0] / OUTWARD, rates[0]
    return rates[low], rates[high] if high < len(rates) else rates[-1] * OUTWARD
