"""Many gaps between tokens as a few runs of gaps that grow evenly; their order statistics without
a list of all gaps.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

FITS = 2.0**62  # below this, also as sums of floats, 64 bits certainly hold a sum
FEW = 1 << 14  # gaps that are listed at once


class GapRuns(NamedTuple):
    """Runs of gaps in ps: first_ps, first_ps + growth_ps, ..., each of `lengths` gaps, and each of
    these gaps `counts` times. growth_ps is at least 0.
    """

    first_ps: Counts
    growth_ps: Counts
    lengths: Counts
    counts: Counts

    @property
    def total(self) -> int:
        """The number of gaps."""
        return int(self.lengths @ self.counts)

    def sum_ps(self) -> int:
        """The sum of all gaps, exactly: it may be more than 64 bits hold."""
        first_ps, growth_ps, num, counts = (column.astype(float) for column in self)
        if (counts * num * (first_ps + growth_ps * num)).sum() < FITS:
            pairs = self.lengths * (self.lengths - 1) // 2
            return int(self.counts @ (self.lengths * self.first_ps + self.growth_ps * pairs))
        columns = [column.tolist() for column in self]
        return sum(
            count * (num * first + growth * (num * (num - 1) // 2))
            for first, growth, num, count in zip(*columns, strict=True)
        )

    def listed(self) -> tuple[Counts, Counts]:
        """Every gap of the runs, and how often it occurs."""
        place = np.arange(self.lengths.sum()) - np.repeat(
            np.cumsum(self.lengths) - self.lengths, self.lengths
        )
        first, growth, count = (
            np.repeat(column, self.lengths)
            for column in (self.first_ps, self.growth_ps, self.counts)
        )
        return first + growth * place, count

    def ranked(self, ranks: Iterable[int]) -> list[int]:
        """The gaps of these ranks, from 0 for the shortest of all."""
        runs = self.flat_ones_merged()
        return [runs._ranked(rank) for rank in ranks]

    def flat_ones_merged(self) -> "GapRuns":
        """The same gaps; those of runs without growth once for each length of a gap."""
        flat = (self.growth_ps == 0) | (self.lengths == 1)
        merged = single_gaps(self.first_ps[flat], (self.lengths * self.counts)[flat])
        columns = [np.concatenate([m, c[~flat]]) for m, c in zip(merged, self, strict=True)]
        return GapRuns(*columns)

    def _ranked(self, rank: int) -> int:
        """Halve the range in which the gap lies until few are left to be listed."""
        low = int(self.first_ps.min())
        high = int((self.first_ps + self.growth_ps * (self.lengths - 1)).max())
        while low < high:
            inside = self._within(low, high)
            if int(inside.lengths.sum()) <= FEW:
                values, counts = inside.listed()
                order = np.argsort(values, kind="stable")
                ends = np.cumsum(counts[order]) + self._num_below(low)
                return int(values[order][np.searchsorted(ends, rank, side="right")])
            middle = (low + high) // 2
            if self._num_below(middle + 1) > rank:
                high = middle
            else:
                low = middle + 1
        return low

    def _places(self, bound_ps: int) -> Counts:
        """The number of gaps below a bound, of each run."""
        growth = np.maximum(self.growth_ps, 1)
        below = -((self.first_ps - bound_ps) // growth)
        steep = np.clip(below, 0, self.lengths)
        return np.where(self.growth_ps > 0, steep, self.lengths * (self.first_ps < bound_ps))

    def _num_below(self, bound_ps: int) -> int:
        return int(self._places(bound_ps) @ self.counts)

    def _within(self, low_ps: int, high_ps: int) -> "GapRuns":
        """The gaps from low_ps to high_ps."""
        start, stop = self._places(low_ps), self._places(high_ps + 1)
        some = stop > start
        first = self.first_ps + self.growth_ps * start
        columns = first, self.growth_ps, stop - start, self.counts
        return GapRuns(*[column[some] for column in columns])


def single_gaps(gaps_ps: Counts, counts: Counts) -> GapRuns:
    """Gaps that are given one by one, each of which occurs `counts` times, once for each length."""
    values, places = np.unique(gaps_ps, return_inverse=True)
    weights = np.zeros(len(values), np.int64)
    np.add.at(weights, places, counts)
    ones = np.ones(len(values), np.int64)
    return GapRuns(values, 0 * ones, ones, weights)


def all_runs(parts: Iterable[GapRuns]) -> GapRuns:
    """The gaps of several. Each column of the parts is forgotten as soon as it is joined."""
    columns = [*map(list, zip(*parts, strict=True))]
    joined = []
    for column in columns:
        joined.append(np.concatenate(column))
        column.clear()
    return GapRuns(*joined)
