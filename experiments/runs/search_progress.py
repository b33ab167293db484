"""The progress of a search for rates."""

from math import ceil, log, log1p, log2

from testbed.api import NEAR

ENDS = 2  # rates that a search begins with


class SearchProgress:
    """The rates of a search with several seeds, of which each begins around the last one's answer.

    `expected` rates are those of first guesses that hold.
    """

    def __init__(self, num_seeds: int, low: float, high: float, precision: float) -> None:
        of_later_seed = _num_rates(NEAR**2, precision)
        self.expected = _num_rates(high / low, precision) + (num_seeds - 1) * of_later_seed
        self._num_seeds, self._seed, self._done = num_seeds, 0, 0

    def began(self, seed: int) -> None:
        """The search with a seed begins."""
        self._seed = seed

    @property
    def of_seed(self) -> str:
        """The seed that is searched, if there are several."""
        return f"seed {self._seed}: " if self._num_seeds > 1 else ""

    def ended(self) -> None:
        """One more rate has been simulated."""
        self._done += 1

    def __str__(self) -> str:
        total = max(self._done, self.expected)
        return f"searching: {self._done} of about {total} rates simulated"


def _num_rates(ratio: float, precision: float) -> int:
    """The rates of a search whose first guess holds, by the ratio of its ends."""
    return ENDS + ceil(log2(max(log(ratio) / log1p(precision), 1.0)))
