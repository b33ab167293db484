"""Decode attention by number of sequences and total context, of equal or of unequal lengths."""

from bisect import bisect_right
from functools import cache

from testbed.core.errors import InputError
from testbed.cost.knots import Knots, blend
from testbed.cost.model import UNBOUNDED, Affine
from testbed.cost.sections import Rows
from testbed.cost.unequal_lengths import Lengths, UnequalLengths


class DecodeTable:
    """Decode attention of all layers: for each number of sequences a piecewise affine function of total context.

    Between measured numbers of sequences, times are blended at equal mean context. `points` are of one block size and
    one spread of lengths; `unequal` says what unequal lengths add to equal ones, None where `points` are of unequal
    ones already.
    """

    def __init__(self, points: Rows, num_layers: int, unequal: UnequalLengths | None = None) -> None:
        measured: dict[int, list[tuple[int, int]]] = {}
        for (num_seqs, context), ps in points:
            measured.setdefault(num_seqs, []).append((context, ps * num_layers))
        self._curves = {n: Knots(curve) for n, curve in sorted(measured.items())}
        self._seqs = list(self._curves)
        self._unequal = unequal
        self.curve = cache(self._curve)
        self._part = cache(lambda num_seqs, share: self.curve(num_seqs).share(share))

    def __call__(self, lengths: Lengths, saved: int) -> int:
        """Picoseconds of one iteration; shared blocks save the reading of `saved` tokens."""
        return self.span(lengths, saved).first_ps

    def span(self, lengths: Lengths, saved: int) -> Affine:
        """Iterations in a row in which every sequence reads one token more each time, up to the next knot or bin."""
        num_seqs, context, longest = lengths
        read = context - saved
        first, growth, end = self.curve(num_seqs).piece(read)
        steps = _steps(end, read, num_seqs)
        if self._unequal is not None:
            part, far = self._part(num_seqs, self._unequal.share(0, 0, lengths)), num_seqs * longest - saved
            (price, slope, end), (less, flatter, _) = part.piece(far), part.piece(read)
            first, growth = first + price - less, growth + slope - flatter
            steps = min(steps, _steps(end, far, num_seqs), self._unequal.steps(lengths))
        return Affine(first, num_seqs * growth, steps) if growth >= 0 else Affine(first, 0, 1)

    def _curve(self, num_seqs: int) -> Knots:
        if num_seqs in self._curves:
            return self._curves[num_seqs]
        i = min(max(1, bisect_right(self._seqs, num_seqs)), len(self._seqs) - 1)
        low, high = self._seqs[max(0, i - 1)], self._seqs[i]
        near, far = self._curves[low], self._curves[high]
        means = sorted({x // low for x in near.x} | {x // high for x in far.x})
        return Knots((m * num_seqs, blend(low, high, num_seqs, near(m * low), far(m * high))) for m in means)


def of_kind(points: Rows, block_size: int, spread: str) -> Rows:
    """The (num_seqs, total_context) points of one block size and spread.

    A section without these two axes is of equal lengths and says nothing of block sizes.
    """
    if points and len(points[0][0]) == 2:
        return points
    chosen = [((key[2], key[3]), ps) for key, ps in points if key[:2] == (block_size, spread)]
    if not chosen:
        known = sorted({key[:2] for key, _ in points})
        raise InputError(f"no decode attention of block size {block_size}, {spread} lengths; measured: {known}")
    return chosen


def _steps(end: int, x: int, stride: int) -> int:
    return UNBOUNDED if end == UNBOUNDED else -(-(end - x) // stride)
