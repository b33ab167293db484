"""Piecewise affine functions of counts, in whole picoseconds, and shares by bins of them."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from testbed.cost.model import UNBOUNDED, Work


class Knots:
    """A piecewise affine function y + slope * (x - knot) in whole numbers.

    The first piece reaches down to 0 and the last one has no end. A piece whose points fall is
    level instead. Raises ValueError without points.
    """

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        pairs = sorted(points)
        if not pairs:
            raise ValueError("a piecewise affine function needs at least one point")
        slopes = [max(0, (y1 - y0) // (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(pairs)] or [0]
        first_x, first_y = pairs[0]
        if first_x > 0:  # the first piece reaches down to zero
            at_zero = max(0, first_y - slopes[0] * first_x)
            pairs.insert(0, (0, at_zero))
            slopes.insert(0, (first_y - at_zero) // first_x)
        self.x = [x for x, _ in pairs]
        self.y = [y for _, y in pairs]
        self.slopes = slopes
        self._starts = self.x[: len(slopes)]
        self._ends = [*self.x[1 : len(slopes)], UNBOUNDED]

    def share(self, share: float) -> "Knots":
        """These pieces, `share` times as high and as steep; slopes stay whole numbers."""
        part = Knots([(0, 0)])
        part.x, part._starts, part._ends = self.x, self._starts, self._ends
        part.y = [round(y * share) for y in self.y]
        part.slopes = [round(slope * share) for slope in self.slopes]
        return part

    def __call__(self, x: int) -> int:
        i = bisect_right(self._starts, x) - 1
        return self.y[i] + self.slopes[i] * (x - self.x[i])

    def piece(self, x: int) -> tuple[int, int, int]:
        """The value at x >= 0, the slope there, and the first count that belongs to the next
        piece.
        """
        i = bisect_right(self._starts, x) - 1
        slope = self.slopes[i]
        return self.y[i] + slope * (x - self.x[i]), slope, self._ends[i]


def curves(points: Iterable[tuple[int, int, int]]) -> dict[int, Knots]:
    """A function of x for each key of (key, x, y), by key."""
    by_key: dict[int, list[tuple[int, int]]] = {}
    for key, x, y in points:
        by_key.setdefault(key, []).append((x, y))
    return {key: Knots(curve) for key, curve in sorted(by_key.items())}


def across(curves: Mapping[int, Knots], x: int) -> Knots:
    """The function of the key at one x."""
    return Knots((key, curve(x)) for key, curve in curves.items())


def surface(
    points: Iterable[tuple[Sequence[int], int]],
    num_axes: int,
    curve: Callable[[list[tuple[int, int]]], Callable[..., int]],
) -> Callable[..., int]:
    """A function of the points' counts: linear along the first num_axes, then a curve over the last
    count.

    Along an axis it is level below the first count, and beyond the last one if it would fall.
    """
    if not num_axes:
        return curve([(key[0], cost) for key, cost in points])
    by_first: dict[int, list[tuple[Sequence[int], int]]] = {}
    for key, cost in points:
        by_first.setdefault(key[0], []).append((key[1:], cost))
    functions = {
        first: surface(rest, num_axes - 1, curve) for first, rest in sorted(by_first.items())
    }
    counts = list(functions)

    def at(x: int, *others: int) -> int:
        low, high = bracket(counts, x)
        y_low = functions[low](*others)
        if x <= low or low == high:
            return y_low
        y_high = functions[high](*others)
        time_ps = blend(low, high, x, y_low, y_high)
        return time_ps if x <= high else max(y_high, time_ps)

    return at


def bracket(counts: Sequence[int], x: int) -> tuple[int, int]:
    """The two of these sorted counts around x; beyond an end the two next to it, and twice the same
    if it is alone.
    """
    i = min(max(1, bisect_right(counts, x)), len(counts) - 1)
    return counts[max(0, i - 1)], counts[i]


def blend(low: int, high: int, x: int, y_low: int, y_high: int) -> int:
    """Whole-number linear interpolation (or extrapolation) between two counts."""
    return y_low + (y_high - y_low) * (x - low) // (high - low) if high > low else y_low


class UnequalLengths:
    """A cost is t(mean) + share * (t(longest) - t(mean)), t that of equal lengths; bins are as in
    PROFILE_FORMAT.md.
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        self._shares = {tuple(row[:5]): float(row[5]) for row in section["points"]}
        self._default = float(section["default"])
        self._edges = [sorted({key[axis] for key in self._shares}) for axis in range(5)]
        self._prefills = [count for count in self._edges[0] if count]

    def share(self, prefill_tokens: int, past_tokens: int, work: Work) -> float:
        """The share for a batch of the work's decodes and of prefill_tokens prompt tokens, before
        which past_tokens are stored.
        """
        _, pasts, seqs, percents, longests = self._edges
        percent = percents[self._percent_bin(percents, work)]
        longest = longests[min(bisect_left(longests, work.decode_max_context), len(longests) - 1)]
        shares, default = self._shares, self._default

        def decodes(prefill: int, past: int) -> float:
            return _between(
                seqs,
                work.decode_seqs,
                lambda n: shares.get((prefill, past, n, percent, longest), default),
            )

        if not (prefill_tokens and self._prefills):
            return decodes(0, 0)
        return _between(
            self._prefills,
            prefill_tokens,
            lambda new: _between(pasts, past_tokens, lambda past: decodes(new, past)),
        )

    def steps(self, work: Work) -> int:
        """For how many decode iterations in a row, the first of which is this one, no bin
        changes.
        """
        num_seqs, context, longest = work[:3]
        percents, longests = self._edges[3], self._edges[4]
        steps = UNBOUNDED
        percent_bin = self._percent_bin(percents, work)
        if percent_bin < len(percents) - 1:
            # 100 (context + k n) <= percent n (longest + k) holds up to some k
            percent = percents[percent_bin]
            distance = percent * num_seqs * longest - 100 * context
            steps = distance // (num_seqs * (100 - percent)) + 1
        longest_bin = bisect_left(longests, longest)
        if longest_bin < len(longests) - 1:
            steps = min(steps, longests[longest_bin] - longest + 1)
        return steps

    def _percent_bin(self, percents: list[int], work: Work) -> int:
        num_seqs, context, longest = work[:3]
        percent_bin = bisect_left(
            percents, 100 * context, key=lambda percent: percent * num_seqs * longest
        )
        return min(percent_bin, len(percents) - 1)


def _between(points: list[int], x: int, value: Callable[[int], float]) -> float:
    """The value at x, linear between the points; level below the first and beyond the last."""
    i = bisect_left(points, x)
    if i == len(points):
        return value(points[-1])
    if i == 0 or points[i] == x:
        return value(points[i])
    low, high = points[i - 1], points[i]
    at_low, at_high = value(low), value(high)
    return at_low + (at_high - at_low) * (x - low) / (high - low)
