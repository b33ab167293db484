"""Simple length distributions, for workloads that isolate one effect. Lengths are whole tokens, at least 1."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column


class Distribution(ABC):
    """Plug-in: a distribution of lengths."""

    @abstractmethod
    def draw(self, num_rows: int, rng: np.random.Generator) -> Column:
        """num_rows independent lengths in tokens."""


@dataclass(frozen=True, slots=True)
class Fixed(Distribution):
    """Always the same length."""

    length: int

    def __post_init__(self) -> None:
        _require(self.length >= 1, self, "length must be at least 1")

    def draw(self, num_rows: int, rng: np.random.Generator) -> Column:
        """num_rows times the length."""
        return np.full(num_rows, self.length, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform(Distribution):
    """Every length from low to high, both included, equally often."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _require(1 <= self.low <= self.high, self, "needs 1 <= low <= high")

    def draw(self, num_rows: int, rng: np.random.Generator) -> Column:
        """num_rows lengths between low and high."""
        return rng.integers(self.low, self.high, size=num_rows, endpoint=True)


@dataclass(frozen=True, slots=True)
class LogNormal(Distribution):
    """exp(N(log median, sigma)) rounded and clipped to 1..high; the mean is about median * exp(sigma^2 / 2)."""

    median: float
    sigma: float
    high: int

    def __post_init__(self) -> None:
        _require(self.median >= 1 and self.sigma >= 0 and self.high >= 1, self, "needs median, high >= 1, sigma >= 0")

    def draw(self, num_rows: int, rng: np.random.Generator) -> Column:
        """num_rows lengths; a long tail gathers at high."""
        raw = np.minimum(rng.lognormal(np.log(self.median), self.sigma, num_rows), self.high)
        return np.maximum(np.rint(raw), 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Zipf(Distribution):
    """Length n from low to high with probability proportional to 1 / n^exponent."""

    exponent: float
    high: int
    low: int = 1

    def __post_init__(self) -> None:
        _require(self.exponent >= 0 and 1 <= self.low <= self.high, self, "needs exponent >= 0, 1 <= low <= high")

    def draw(self, num_rows: int, rng: np.random.Generator) -> Column:
        """num_rows lengths, by the inverse of the cumulative weights."""
        weights = np.arange(self.low, self.high + 1, dtype=np.float64) ** -self.exponent
        cumulative = np.cumsum(weights)
        place: Column = np.searchsorted(cumulative[:-1], rng.random(num_rows) * cumulative[-1], side="right")
        return self.low + place


def _require(holds: bool, distribution: Distribution, rule: str) -> None:
    if not holds:
        raise InputError(f"{distribution}: {rule}")
