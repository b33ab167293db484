"""Many gaps between tokens as a few runs of gaps that grow evenly; their order statistics without
a list of all gaps.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.engine.packed_rows import compact

Counts = NDArray[np.int64]
EMPTY = np.empty(0, np.int64)

FITS = 2.0**62  # below this, also as sums of floats, 64 bits certainly hold a sum
FEW = 1 << 16  # gaps that are listed at once


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

    def flat_ones_merged(self) -> "GapRuns":
        """These gaps; those of runs without growth once for each length of a gap."""
        flat = (self.growth_ps == 0) | (self.lengths == 1)
        merged = single_gaps(self.first_ps[flat], (self.lengths * self.counts)[flat])
        columns = [np.concatenate([m, c[~flat]]) for m, c in zip(merged, self, strict=True)]
        return GapRuns(*columns)

    def bounds_ps(self) -> tuple[int, int]:
        """The shortest and the longest gap; there is one."""
        last_ps = self.first_ps + self.growth_ps * (self.lengths - 1)
        return int(self.first_ps.min()), int(last_ps.max())

    def num_below(self, bound_ps: int) -> int:
        """The number of gaps below a bound."""
        return int(self._places(bound_ps) @ self.counts)

    def within(self, low_ps: int, high_ps: int) -> "GapRuns":
        """The gaps from low_ps to high_ps."""
        start, stop = self._places(low_ps), self._places(high_ps + 1)
        some = stop > start
        first = self.first_ps + self.growth_ps * start
        columns = first, self.growth_ps, stop - start, self.counts
        return GapRuns(*[column[some] for column in columns])

    def _places(self, bound_ps: int) -> Counts:
        """The number of gaps below a bound, of each run."""
        growth = np.maximum(self.growth_ps, 1)
        below = -((self.first_ps - bound_ps) // growth)
        steep = np.clip(below, 0, self.lengths)
        return np.where(self.growth_ps > 0, steep, self.lengths * (self.first_ps < bound_ps))


class GapParts:
    """All gaps of a run, in parts of which only one at a time takes 64 bits a number.

    parts: may be made while they are read.
    """

    def __init__(self, parts: Iterable[GapRuns]) -> None:
        self._parts = [tuple(map(compact, part)) for part in parts if len(part.lengths)]

    def __iter__(self) -> Iterator[GapRuns]:
        for part in self._parts:
            yield GapRuns(*[column.astype(np.int64, copy=False) for column in part])

    @property
    def total(self) -> int:
        """The number of gaps."""
        return sum(part.total for part in self)

    def sum_ps(self) -> int:
        """The sum of all gaps, exactly."""
        return sum(part.sum_ps() for part in self)

    def listed(self) -> tuple[Counts, Counts]:
        """Every gap, and how often it occurs."""
        values, counts = [EMPTY], [EMPTY]
        for part in self:
            some, times = part.listed()
            values.append(some)
            counts.append(times)
        return np.concatenate(values), np.concatenate(counts)

    def ranked(self, ranks: Iterable[int]) -> list[int]:
        """The gaps of these ranks, from 0 for the shortest of all."""
        ranks = [*ranks]
        lows, highs = zip(*[part.bounds_ps() for part in self], strict=True)
        gap_of = self._ranked(ranks, min(lows), max(highs))
        return [gap_of[rank] for rank in ranks]

    def _ranked(self, ranks: list[int], low: int, high: int) -> dict[int, int]:
        """The gaps by rank, all from low to high: halve the range until few are to be listed."""
        if low == high or not ranks:
            return dict.fromkeys(ranks, low)
        if sum(int(part.within(low, high).lengths.sum()) for part in self) <= FEW:
            values, counts = GapParts(part.within(low, high) for part in self).listed()
            order = np.argsort(values, kind="stable")
            ends = np.cumsum(counts[order]) + sum(part.num_below(low) for part in self)
            places = np.searchsorted(ends, ranks, side="right")
            return dict(zip(ranks, values[order][places].tolist(), strict=True))
        middle = (low + high) // 2
        num_low = sum(part.num_below(middle + 1) for part in self)
        low_ones = self._ranked([rank for rank in ranks if rank < num_low], low, middle)
        return low_ones | self._ranked([r for r in ranks if r >= num_low], middle + 1, high)


def single_gaps(gaps_ps: Counts, counts: Counts) -> GapRuns:
    """Gaps that are given one by one, each of which occurs `counts` times, once for each length."""
    values, places = np.unique(gaps_ps, return_inverse=True)
    weights = np.zeros(len(values), np.int64)
    np.add.at(weights, places, counts)
    ones = np.ones(len(values), np.int64)
    return GapRuns(values, 0 * ones, ones, weights)
