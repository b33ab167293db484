"""The progress of a search for rates: the runs that it takes, those done, and its end."""

import time
from math import ceil, log, log1p, log2

from testbed.api import NEAR
from testbed.experiments.runs.progress import left

ENDS = 2  # rates that a search begins with


class SearchProgress:
    """The rates of a search with several seeds, of which each begins around the last one's answer.

    `expected` rates are those of first guesses that hold; guesses that are moved add to them.
    """

    def __init__(self, num_seeds: int, low: float, high: float, precision: float) -> None:
        later = _num_rates(NEAR**2, precision)
        self.expected = _num_rates(high / low, precision) + (num_seeds - 1) * later
        self._began = time.monotonic()
        self._done = 0

    def ended(self) -> None:
        """One more rate has been simulated."""
        self._done += 1

    def __str__(self) -> str:
        total = max(self.expected, self._done + 1)
        rest = left(self._done, total, time.monotonic() - self._began)
        return f"searching: {self._done} of about {total} rates simulated{rest}"


def _num_rates(ratio: float, precision: float) -> int:
    """The rates of a bisection from one end to the other, by the ratio of the ends."""
    halvings = log2(max(log(ratio) / log1p(precision), 1.0))
    return ENDS + ceil(halvings)
