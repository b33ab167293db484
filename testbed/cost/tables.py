"""Piecewise affine functions of counts, in whole picoseconds, made of a profile's measured points."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ServerSpec
from testbed.cost.model import UNBOUNDED

PS_PER_US = 10**6
Rows = list[tuple[tuple[Any, ...], int]]


def rows(profile: Mapping[str, Any], section: str) -> Rows:
    """A section's points as (key, median in picoseconds)."""
    body = profile["sections"].get(section)
    if body is None:
        raise InputError(f"the profile of {profile['model']['name']} has no section {section}")
    width = len(body["axes"])
    return [(tuple(row[:width]), round(row[width] * PS_PER_US)) for row in body["points"]]


class Knots:
    """base + slope * (x - knot) with whole-number base and slope; the last slope continues beyond the last knot.

    Slopes are not negative: where a measured time falls, the piece before it is level.
    """

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        pairs = sorted(points)
        if not pairs:
            raise ValueError("a piecewise affine function needs at least one point")
        slopes = [max(0, (y1 - y0) // (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(pairs)] or [0]
        if pairs[0][0] > 0:  # the first piece reaches down to zero
            first, value = pairs[0]
            pairs, slopes = [(0, max(0, value - slopes[0] * first)), *pairs], [0, *slopes]
            slopes[0] = (value - pairs[0][1]) // first
        self.x, self.y, self.slopes = [x for x, _ in pairs], [y for _, y in pairs], slopes

    def segment(self, x: int) -> int:
        """Index of the piece that holds x >= 0; the last one reaches on."""
        return min(bisect_right(self.x, x) - 1, len(self.slopes) - 1)

    def __call__(self, x: int) -> int:
        i = self.segment(x)
        return self.y[i] + self.slopes[i] * (x - self.x[i])

    def end(self, x: int) -> int:
        """First count that belongs to the next piece."""
        i = self.segment(x)
        return self.x[i + 1] if i + 1 < len(self.slopes) else UNBOUNDED


def blend(low: int, high: int, x: int, y_low: int, y_high: int) -> int:
    """Whole-number linear interpolation (or extrapolation) between two counts."""
    return y_low + (y_high - y_low) * (x - low) // (high - low) if high > low else y_low


class DecodeTable:
    """Decode attention of all layers: for each number of sequences a piecewise affine function of total context.

    Between measured numbers of sequences, times are blended at equal mean context.
    """

    def __init__(self, points: Rows, block_size: int, spread: str, num_layers: int) -> None:
        measured: dict[int, list[tuple[int, int]]] = {}
        for (size, kind, num_seqs, context), ps in points:
            if (size, kind) == (block_size, spread):
                measured.setdefault(num_seqs, []).append((context, ps * num_layers))
        if not measured:
            known = sorted({key[:2] for key, _ in points})
            raise InputError(f"no decode attention of block size {block_size}, {spread} lengths; measured: {known}")
        self._curves = {n: Knots(curve) for n, curve in sorted(measured.items())}
        self._seqs = list(self._curves)
        self.curve = cache(self._curve)

    def _curve(self, num_seqs: int) -> Knots:
        if num_seqs in self._curves:
            return self._curves[num_seqs]
        i = min(max(1, bisect_right(self._seqs, num_seqs)), len(self._seqs) - 1)
        low, high = self._seqs[max(0, i - 1)], self._seqs[i]
        near, far = self._curves[low], self._curves[high]
        means = sorted({x // low for x in near.x} | {x // high for x in far.x})
        return Knots((m * num_seqs, blend(low, high, num_seqs, near(m * low), far(m * high))) for m in means)


class PrefillTable:
    """Prefill attention of all layers for (new, past) tokens: the larger of the slowest sequence alone and the sum
    of all at the rate that a full GPU reaches."""

    def __init__(self, points: Rows, num_layers: int) -> None:
        self._alone: dict[int, list[tuple[int, int]]] = {}
        self._full: dict[int, list[tuple[int, int]]] = {}
        for (count, new, past), ps in points:
            table = self._alone if count == 1 else self._full
            table.setdefault(new, []).append((past, ps * num_layers // count))
        self._price = cache(self._price_ps)

    def __call__(self, prefill: tuple[tuple[int, int], ...]) -> int:
        prices = [self._price(new, past) for new, past in prefill]
        return max(max(alone for alone, _ in prices), sum(full for _, full in prices)) if prices else 0

    def _price_ps(self, new: int, past: int) -> tuple[int, int]:
        alone, full = (
            Knots((new_i, Knots(curve)(past)) for new_i, curve in table.items())(new)
            for table in (self._alone, self._full)
        )
        return alone, full


class SizedTable:
    """Times by block size and number of blocks; between measured block sizes they are blended.

    A longer extent counts as the blocks of the largest measured size that it would fill.
    """

    def __init__(self, points: Iterable[tuple[tuple[int, int], int]]) -> None:
        by_size: dict[int, list[tuple[int, int]]] = {}
        for (size, count), ps in points:
            by_size.setdefault(size, []).append((count, ps))
        self._tables = {size: Knots(curve) for size, curve in sorted(by_size.items())}
        self._sizes = list(self._tables)

    def __call__(self, block_size: int, num_blocks: int) -> int:
        if num_blocks == 0:
            return 0
        if block_size > self._sizes[-1]:
            block_size, num_blocks = self._sizes[-1], num_blocks * -(-block_size // self._sizes[-1])
        if block_size in self._tables:
            return self._tables[block_size](num_blocks)
        i = min(max(1, bisect_right(self._sizes, block_size)), len(self._sizes) - 1)
        low, high = self._sizes[max(0, i - 1)], self._sizes[i]
        return max(0, blend(low, high, block_size, self._tables[low](num_blocks), self._tables[high](num_blocks)))


class AllReduce:
    """One all-reduce by bytes: measured, or a ring over the server's links (Megatron-LM) with no latency.

    Measured on fewer GPUs than asked for, times grow by the ring's share (n - 1) / n.
    """

    def __init__(self, profile: Mapping[str, Any], server: ServerSpec | None) -> None:
        self._knots: Knots | None = None
        self._ps_per_byte = 0.0
        if server is None or server.num_gpus == 1:
            return
        n = server.num_gpus
        points = rows(profile, "all_reduce") if "all_reduce" in profile["sections"] else []
        if points:
            m = max(key[0] for key, _ in points if key[0] <= n)
            self._knots = Knots((key[1], ps * (n - 1) * m // (n * (m - 1))) for key, ps in points if key[0] == m)
        else:
            self._ps_per_byte = 2 * (n - 1) / n / server.gpu.link_bandwidth * PS

    def __call__(self, num_bytes: int) -> int:
        return self._knots(num_bytes) if self._knots else round(num_bytes * self._ps_per_byte)
