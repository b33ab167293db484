"""The progress of a search for rates: the runs that it takes, those done, and its end."""

import time
from math import ceil, inf, log, log1p, log2, sqrt

from testbed.api import NEAR

ENDS = 2  # rates that a search begins with
ROUNDED = 1e-3  # rates are tried with four digits


class SearchProgress:
    """The rates of a search with several seeds, of which each begins around the last one's answer.

    `expected` rates are those of first guesses that hold. The time of a run is taken as
    proportional to its rate; while a guess is moved outward no end is in sight.
    """

    def __init__(self, num_seeds: int, low: float, high: float, precision: float) -> None:
        self._precision = precision
        self._of_later_seed = _num_rates(NEAR**2, precision)
        self._seeds_left = num_seeds - 1
        self.expected = _num_rates(high / low, precision) + self._seeds_left * self._of_later_seed
        self._began = time.monotonic()
        self._num_seeds, self._seed = num_seeds, 0
        self._done, self._sum_of_rates = 0, 0.0
        self._kept, self._missed = 0.0, inf

    def began(self, seed: int) -> None:
        """The search with a seed begins, around the last one's answer."""
        self._seed = seed
        if self._done:
            self._seeds_left -= 1
            self._kept, self._missed = self._kept / NEAR, self._kept * NEAR

    @property
    def of_seed(self) -> str:
        """The seed that is searched, if there are several."""
        return f"seed {self._seed}: " if self._num_seeds > 1 else ""

    def ended(self, rate: float, *, keeps: bool) -> None:
        """One more rate has been simulated, which keeps the objectives or misses them."""
        self._done += 1
        self._sum_of_rates += rate
        self._kept, self._missed = (rate, self._missed) if keeps else (self._kept, rate)

    @property
    def _is_found(self) -> bool:
        widest = self._kept * (1 + self._precision) * (1 + ROUNDED)
        return self._kept < self._missed <= widest

    def __str__(self) -> str:
        if not self._done:
            return f"searching: 0 of about {self.expected} rates simulated"
        done = f"searching: {self._done} rates simulated"
        if not self._kept:
            return f"{done}, one below {self._missed:g} req/s is tried"
        if self._missed == inf:
            return f"{done}, one above {self._kept:g} req/s is tried"
        rest = 0 if self._is_found else _num_halvings(self._missed / self._kept, self._precision)
        rest += self._seeds_left * self._of_later_seed
        pace = (time.monotonic() - self._began) / self._sum_of_rates
        seconds = rest * sqrt(self._kept * self._missed) * pace
        total = self._done + rest
        return (
            f"searching: {self._done} of about {total} rates simulated, about {seconds:,.0f} s left"
        )


def _num_rates(ratio: float, precision: float) -> int:
    """The rates of a search whose first guess holds, by the ratio of its ends."""
    return ENDS + _num_halvings(ratio, precision)


def _num_halvings(ratio: float, precision: float) -> int:
    """The rates of a bisection between two ends, by their ratio."""
    return ceil(log2(max(log(ratio) / log1p(precision), 1.0)))
