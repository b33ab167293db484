"""Means over replications: runs that differ only in their seed are repetitions of one experiment.

The interval is Student's (95%, two-sided), which assumes that the runs' values are independent and
about normal. Two systems that were run on the same seeds saw the same requests, so their
differences are taken seed by seed before the mean.
"""

from collections.abc import Sequence
from math import atan, cos, isfinite, isnan, pi, sin, sqrt
from typing import NamedTuple

CONFIDENCE = 0.95
ROUNDING = 1e-12  # of a mean: what sums of equal numbers differ by
NOT_DISTINGUISHABLE = "not distinguishable"
MORE_SEEDS = f"{NOT_DISTINGUISHABLE}: that interval includes 0; more seeds (--seeds N) narrow it"


class Interval(NamedTuple):
    """The mean of `num_values` replications, and half the width of its 95% interval: None for one
    value.
    """

    mean: float
    half_width: float | None
    num_values: int

    def __str__(self) -> str:
        """The half width with two digits, and the mean to the same decimal place."""
        if self.half_width is None:
            return _rounded(self.mean, 3)
        if not isfinite(self.half_width):
            return f"{_rounded(self.mean, 3)} ± {self.half_width}"
        if self.half_width <= ROUNDING * abs(self.mean):
            return _rounded(self.mean, 4)
        places = 1 - int(f"{self.half_width:.1e}".partition("e")[2])
        shown = [round(value, places) + 0.0 for value in (self.mean, self.half_width)]  # no -0
        return " ± ".join(f"{value:,.{max(places, 0)}f}" for value in shown)

    @property
    def includes_zero(self) -> bool:
        """True if the data leave the mean's sign open."""
        return self.half_width is None or not abs(self.mean) > self.half_width

    def as_difference(self, unit: str) -> str:
        """The mean as a difference from another system: one seed says nothing of others, and the
        interval of several may leave the sign open.
        """
        if self.half_width is None:
            return f"{self.mean:+.3g} {unit} on one seed"
        return f"{NOT_DISTINGUISHABLE} ({self} {unit})" if self.includes_zero else f"{self} {unit}"

    @property
    def p_value(self) -> float:
        """The probability of a mean this far from zero if the true one is zero (two-sided)."""
        if self.half_width is None or isnan(self.half_width) or not self.mean:
            return 1.0
        if not self.half_width:
            return 0.0
        degrees = self.num_values - 1
        errors = abs(self.mean) / self.half_width * student_t(degrees)
        return max(0.0, 1.0 - _within(errors, degrees))


def interval(values: Sequence[float]) -> Interval:
    """The mean of one value per replication, with its interval."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return Interval(mean, half_width=None, num_values=count)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return Interval(mean, student_t(count - 1) * deviation / sqrt(count), count)


def within_step(interval: Interval, step: float) -> Interval:
    """The interval of values that a search knows to a step: its half width is larger by the step,
    even if the values are equal.
    """
    if interval.half_width is None:
        return interval
    return interval._replace(half_width=interval.half_width + step)


def paired(values: Sequence[float], reference: Sequence[float]) -> Interval:
    """The mean difference from the reference, whose values are of the same seeds in this order."""
    return interval([a - b for a, b in zip(values, reference, strict=True)])


def student_t(degrees: int, probability: float = CONFIDENCE) -> float:
    """The value that Student's t does not exceed in size with this probability."""
    low, high = 0.0, 20.0
    while _within(high, degrees) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < probability else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """The probability that |T| <= t (Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.7.3 and 26.7.4).
    """
    angle = atan(t / sqrt(degrees))
    first = 2 if degrees % 2 else 1
    term = cos(angle) if degrees % 2 else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(first, degrees - 2, 2):
        term *= step / (step + 1) * cos(angle) ** 2
        total += term
    if degrees % 2:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total


def _rounded(value: float, digits: int) -> str:
    return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
