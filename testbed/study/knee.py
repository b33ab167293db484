"""The knee of a latency curve (Figure 12): the highest rate that a system sustains."""

from collections.abc import Callable
from math import sqrt

from testbed.core.errors import AnswerIsNo, InputError

MAX_STEPS = 40
FARTHER = 1.5  # a failed guess is followed by a wider one,
WIDEST = 4.0  # by at most this factor: farther rates have no requests, or a hundred times as many
OUTWARD = 1.25  # beyond the ends of a grid


class NoRate(InputError):
    """A search has found no rate: no rate is sustained, or every one, or none says anything."""


class NotSustained(NoRate, AnswerIsNo):
    """Not even the lowest rate of a search is sustained."""


def sustained_rate(
    is_sustained: Callable[[float], bool], low: float, high: float, precision: float
) -> float:
    """The rate, within a factor of 1 + precision, above which `is_sustained` fails.

    low and high (requests/s) are a first guess, moved outward until `is_sustained(low)` and not
    `is_sustained(high)`. Close to the knee a rate may be sustained and a lower one not; the answer
    is then one of the rates if that changes. Raises NoRate if every rate is
    sustained, and its NotSustained if none is.
    """
    for _ in range(MAX_STEPS):
        if is_sustained(low):
            break
        low, high = low / _step(low, high), low
    else:
        raise NotSustained(key=f"{low:.3g} requests/s", problem="not even this rate is sustained")
    for _ in range(MAX_STEPS):
        if not is_sustained(high):
            break
        low, high = high, high * _step(low, high)
    else:
        raise NoRate(key=f"{high:.3g} requests/s", problem="is sustained, so there is no knee")
    while high > low * (1 + precision):
        middle = sqrt(low * high)
        low, high = (middle, high) if is_sustained(middle) else (low, middle)
    return sqrt(low * high)


def _step(low: float, high: float) -> float:
    """The factor to the rate beyond a guess that failed."""
    return float(min((high / low) ** FARTHER, WIDEST))


def highest_rate(
    share_inside: Callable[[float], float],
    needed: float,
    low: float,
    high: float,
    precision: float,
) -> float:
    """The highest rate, of those that the search of `sustained_rate` tries with four digits, at
    which share_inside is at least `needed`; each rate is asked for once.
    """
    tried = dict[float, float]()

    def is_sustained(rate: float) -> bool:
        rate = float(f"{rate:.4g}")
        if rate not in tried:
            tried[rate] = share_inside(rate)
        return tried[rate] >= needed

    knee = sustained_rate(is_sustained, low, high, precision)
    return max(rate for rate, inside in tried.items() if inside >= needed and rate <= knee)


def bracket(rates: list[float], is_sustained: Callable[[float], bool]) -> tuple[float, float]:
    """Neighbours in a sorted grid between which `is_sustained` becomes false; at an end the grid is
    extended.
    """
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_sustained(rates[middle]) else (low, middle)
    if high == 0:
        return rates[0] / OUTWARD, rates[0]
    return rates[low], rates[high] if high < len(rates) else rates[-1] * OUTWARD
