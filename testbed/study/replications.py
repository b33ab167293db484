"""Means over replications: runs that differ only in their seed are repetitions of one experiment.

The interval is Student's (95%, two-sided), which assumes that the runs' values are independent and
about normal. Two systems that were run on the same seeds saw the same requests, so their
differences are taken seed by seed before the mean.
"""

from collections.abc import Sequence
from math import atan, cos, floor, log10, pi, sin, sqrt
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
        """The mean with the digits that the interval carries, and the half width; a mean within its
        half width keeps two digits, or those of a half width of two digits.
        """
        return self.beside([])

    def beside(self, differences: Sequence["Interval"], values: Sequence[float] = ()) -> str:
        """`str`, with no fewer decimal places than differences from it that stand near and are
        distinguishable from zero have: else 7 and 7 would differ by 0.4. values: its own if they
        stand near, among which the mean stays: else 20 would be the mean of 23 and 25.
        """
        known = [of._places for of in differences if not of.includes_zero]
        needed = [places for places in known if places is not None]
        if self._places is None:
            text = _rounded(self.mean, 3 if self.half_width is None else 4)
            fewest = max([0, *needed])
            is_enough = len(text.partition(".")[2]) >= fewest
            return text if is_enough else f"{self.mean:,.{fewest}f}"
        places = self._among(values, max([self._places, *needed]))
        shown = [round(value, places) for value in (self.mean, self.half_width or 0.0)]
        return " ± ".join(f"{value:,.{max(places, 0)}f}" for value in shown)

    def _among(self, values: Sequence[float], fewest: int) -> int:
        """Decimal places, up to two more, at which the rounded mean is none beyond the values."""
        for places in (fewest, fewest + 1):
            if not values or min(values) <= round(self.mean, places) <= max(values):
                return places
        return fewest + 2

    @property
    def _places(self) -> int | None:
        """Decimal places of the text; None of a mean without a width that limits them."""
        if self.half_width is None or self.half_width <= ROUNDING * abs(self.mean):
            return None
        places = decimals(self.half_width)
        if places is None:
            return None
        has_one_digit = self.half_width * 10.0**places < 10
        if has_one_digit and abs(self.mean) < min(self.half_width, 10.0 ** (1 - places)):
            return places + 1
        return places

    @property
    def includes_zero(self) -> bool:
        """True if the data leave the mean's sign open."""
        return self.half_width is None or abs(self.mean) <= self.half_width

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
        if self.half_width is None or not self.mean:
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


def decimals(half_width: float) -> int | None:
    """Decimal places of the interval's first digit, of its second after a 1; None for no width."""
    if not half_width > 0:
        return None
    places = -floor(log10(half_width))
    return places + 1 if half_width * 10**places < 2 else places


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
