"""Attention of iterations that hold a prompt: prefill and decodes together, as measured, not added up."""

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from testbed.cost.knots import blend
from testbed.cost.prefill_table import PrefillTable
from testbed.cost.sections import Rows
from testbed.cost.unequal_lengths import Lengths, UnequalLengths

K = TypeVar("K")


class MixedTable:
    """All layers' attention over (prefill tokens, those stored before, decodes, their mean context).

    Between measured points each axis is linear, each slice on its own points; below the first point its time holds,
    beyond the last one the last piece goes on. Several prompts are priced as one of as many tokens, with as many pairs
    of new and stored ones, but for what they take alone: that is what `prompts` says, or without it no longer than one
    after the other.
    """

    def __init__(
        self, points: Rows, num_layers: int, unequal: UnequalLengths | None = None, prompts: PrefillTable | None = None
    ) -> None:
        self._prompts = prompts
        self._slices: dict[int, dict[int, dict[int, list[tuple[int, int]]]]] = {}
        for (new, past, num_seqs, mean), ps in points:
            by_seqs = self._slices.setdefault(new, {})
            by_seqs.setdefault(num_seqs, {}).setdefault(past, []).append((mean, ps * num_layers))
        for by_seqs in self._slices.values():
            for by_past in by_seqs.values():
                for curve in by_past.values():
                    curve.sort()
        self._unequal = unequal
        self._keys: Callable[[int], list[int]] = cache(lambda new: sorted(self._slices[new]))
        self._news = sorted(self._slices)
        self._pasts: Callable[[int, int], list[int]] = cache(lambda new, seqs: sorted(self._slices[new][seqs]))

    def __call__(self, prefill: tuple[tuple[int, int], ...], decodes: Lengths, saved: int) -> int:
        new = sum(count for count, _ in prefill)
        past = prefill[0][1] if len(prefill) == 1 else sum(count * stored for count, stored in prefill) // new
        read = decodes.context - saved
        price = self._at(new, past, decodes.num_seqs, read)
        if self._unequal is not None and decodes.num_seqs > 1:
            longest = self._at(new, past, decodes.num_seqs, decodes.num_seqs * decodes.longest - saved)
            price += round(self._unequal.share(new, past, decodes) * (longest - price))
        if len(prefill) > 1:
            one = self._at(new, past, 0, 0)
            price += min(one, self._alone(prefill)) - one
        return max(0, price)

    def _alone(self, prefill: tuple[tuple[int, int], ...]) -> int:
        if self._prompts is not None:
            return self._prompts(prefill)
        return sum(self._at(new, past, 0, 0) for new, past in prefill)

    def _at(self, new: int, past: int, num_seqs: int, context: int) -> int:
        """One prompt beside num_seqs decodes that read `context` tokens in all."""
        return _between(self._news, new, lambda n: self._beside(n, past, num_seqs, context))

    def _beside(self, new: int, past: int, num_seqs: int, context: int) -> int:
        return _between(self._keys(new), num_seqs, lambda seqs: self._stored(new, seqs, past, num_seqs, context))

    def _stored(self, new: int, seqs: int, past: int, num_seqs: int, context: int) -> int:
        by_past = self._slices[new][seqs]
        return _between(self._pasts(new, seqs), past, lambda p: _on(by_past[p], num_seqs, context))


def _between(keys: list[int], x: int, value: Callable[[int], int]) -> int:
    """The value at x, linear between the two nearest keys."""
    i = bisect_right(keys, x)
    if i == 0 or len(keys) == 1:
        return value(keys[0])
    if keys[i - 1] == x:
        return value(x)
    low, high = (keys[i - 1], keys[i]) if i < len(keys) else (keys[-2], keys[-1])
    y_low, y_high = value(low), value(high)
    return blend(low, high, x, y_low, y_high) if x <= high else max(y_high, blend(low, high, x, y_low, y_high))


def _on(curve: list[tuple[int, int]], num_seqs: int, context: int) -> int:
    """The time at a mean context of context / num_seqs, which need not be whole."""
    if len(curve) == 1 or context <= curve[0][0] * num_seqs:
        return curve[0][1]
    i = min(bisect_right(curve, context, key=lambda point: point[0] * num_seqs), len(curve) - 1)
    (low, y_low), (high, y_high) = curve[i - 1], curve[i]
    return blend(low * num_seqs, high * num_seqs, context, y_low, y_high)
