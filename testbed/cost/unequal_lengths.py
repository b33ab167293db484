"""What unequal context lengths add to decode attention: a share, measured by bins, of t(longest) - t(mean)."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from testbed.cost.model import UNBOUNDED, Work

AXES = ("prefill_tokens", "past_tokens", "num_seqs", "mean_percent", "max_context")


class UnequalLengths:
    """A cost is t(mean) + share * (t(longest) - t(mean)), where t is that of equal lengths.

    Prefill tokens, past tokens and num_seqs are points that were measured: shares are linear between them, and beyond
    the last one its share is used. Decodes alone, prefill_tokens 0, are separate kernels and not blended with the
    rest. mean_percent (the mean context in percent of the longest) and longest are bins, named by their upper edges;
    beyond the last edge the last bin is used. What was not measured has the section's `default`.
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        self._shares = {tuple(row[:5]): float(row[5]) for row in section["points"]}
        self._default = float(section["default"])
        self._edges = [sorted({key[axis] for key in self._shares}) for axis in range(5)]
        self._prefills = [count for count in self._edges[0] if count]

    def share(self, prefill_tokens: int, past_tokens: int, work: Work) -> float:
        """The share for a batch of the work's decodes together with so many prompt tokens with so many stored ones."""
        _, pasts, seqs, percents, longests = self._edges
        percent = percents[self._percent_bin(percents, work)]
        longest = longests[min(bisect_left(longests, work.decode_max_context), len(longests) - 1)]

        def decodes(prefill: int, past: int) -> float:
            known, default = self._shares, self._default
            return _between(seqs, work.decode_seqs, lambda n: known.get((prefill, past, n, percent, longest), default))

        if not (prefill_tokens and self._prefills):
            return decodes(0, 0)
        return _between(self._prefills, prefill_tokens,
                        lambda new: _between(pasts, past_tokens, lambda past: decodes(new, past)))  # fmt: skip

    def steps(self, work: Work) -> int:
        """For how many decode iterations in a row, the first of which is this one, no bin changes."""
        num_seqs, context, longest = work[:3]
        percents, longests = self._edges[3], self._edges[4]
        place, steps = self._percent_bin(percents, work), UNBOUNDED
        if place < len(percents) - 1:  # 100 (context + k n) <= percent n (longest + k) holds up to some k
            percent = percents[place]
            left = percent * num_seqs * longest - 100 * context
            steps = left // (num_seqs * (100 - percent)) + 1
        i = bisect_left(longests, longest)
        if i < len(longests) - 1:
            steps = min(steps, longests[i] - longest + 1)
        return steps

    def _percent_bin(self, percents: list[int], work: Work) -> int:
        num_seqs, context, longest = work[:3]
        place = bisect_left(percents, 100 * context, key=lambda percent: percent * num_seqs * longest)
        return min(place, len(percents) - 1)


def _between(points: list[int], x: int, value: Callable[[int], float]) -> float:
    """The value at x, linear between the points; below the first and beyond the last, theirs."""
    i = bisect_left(points, x)
    if i == len(points) or i == 0 or points[i] == x:
        return value(points[min(i, len(points) - 1)])
    low, high = points[i - 1], points[i]
    first, second = value(low), value(high)
    return first + (second - first) * (x - low) / (high - low)
