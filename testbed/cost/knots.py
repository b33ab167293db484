"""Piecewise affine functions of counts, in whole picoseconds."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from testbed.cost.model import UNBOUNDED


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

    def share(self, share: float) -> "Knots":
        """The same pieces, `share` times as high and as steep; slopes stay whole numbers."""
        part = Knots([(0, 0)])
        part.x, part.y = self.x, [round(y * share) for y in self.y]
        part.slopes = [round(slope * share) for slope in self.slopes]
        return part

    def segment(self, x: int) -> int:
        """Index of the piece that holds x >= 0; the last one reaches on."""
        return min(bisect_right(self.x, x) - 1, len(self.slopes) - 1)

    def __call__(self, x: int) -> int:
        i = self.segment(x)
        return self.y[i] + self.slopes[i] * (x - self.x[i])

    def piece(self, x: int) -> tuple[int, int, int]:
        """The value at x, the slope there, and the first count that belongs to the next piece."""
        i, slopes = self.segment(x), self.slopes
        end = self.x[i + 1] if i + 1 < len(slopes) else UNBOUNDED
        return self.y[i] + slopes[i] * (x - self.x[i]), slopes[i], end


class Line:
    """Linear between points and level beyond both ends; it may fall, so no span of iterations is read off it."""

    def __init__(self, points: Iterable[tuple[int, int]]) -> None:
        self._points = sorted(points)

    def __call__(self, x: int) -> int:
        points = self._points
        i = bisect_left(points, x, key=lambda point: point[0])
        if i in (0, len(points)):
            return points[min(i, len(points) - 1)][1]
        (low, y_low), (high, y_high) = points[i - 1], points[i]
        return blend(low, high, x, y_low, y_high)


def blend(low: int, high: int, x: int, y_low: int, y_high: int) -> int:
    """Whole-number linear interpolation (or extrapolation) between two counts."""
    return y_low + (y_high - y_low) * (x - low) // (high - low) if high > low else y_low
