"""What unequal context lengths add to decode attention: a share, measured by bins, of t(longest) - t(mean)."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.cost.model import UNBOUNDED

AXES = ("prefill_tokens", "past_tokens", "num_seqs", "mean_percent", "longest")


class Lengths(NamedTuple):
    """Decode contexts in counts: num_seqs of them, their sum, the longest."""

    num_seqs: int
    context: int
    longest: int


class UnequalLengths:
    """A price is t(mean) + share * (t(longest) - t(mean)), where t is that of equal lengths.

    A section's bins are named by their upper edges; beyond the last edge of an axis the last bin goes on. mean_percent
    is the mean context in percent of the longest. A bin that was not measured has the section's `default`.
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        self._shares = {tuple(row[:5]): float(row[5]) for row in section["points"]}
        self._default = float(section["default"])
        self._edges = [sorted({key[axis] for key in self._shares}) for axis in range(5)]

    def share(self, prefill_tokens: int, past_tokens: int, lengths: Lengths) -> float:
        """The share for a batch of these decodes beside so many prompt tokens with so many stored ones."""
        prefill, past, seqs, percents, longests = self._edges
        percent = percents[self._percent_bin(percents, lengths)]
        beside = _edge(prefill, prefill_tokens), _edge(past, past_tokens)
        key = (*beside, _edge(seqs, lengths.num_seqs), percent, _edge(longests, lengths.longest))
        return self._shares.get(key, self._default)

    def steps(self, lengths: Lengths) -> int:
        """For how many decode iterations in a row, the first of which is this one, no bin changes."""
        num_seqs, context, longest = lengths
        percents, longests = self._edges[3], self._edges[4]
        place, steps = self._percent_bin(percents, lengths), UNBOUNDED
        if place < len(percents) - 1:  # 100 (context + k n) <= percent n (longest + k) holds up to some k
            percent = percents[place]
            left = percent * num_seqs * longest - 100 * context
            steps = left // (num_seqs * (100 - percent)) + 1
        i = bisect_left(longests, longest)
        if i < len(longests) - 1:
            steps = min(steps, longests[i] - longest + 1)
        return steps

    def _percent_bin(self, percents: list[int], lengths: Lengths) -> int:
        num_seqs, context, longest = lengths
        place = bisect_left(percents, 100 * context, key=lambda percent: percent * num_seqs * longest)
        return min(place, len(percents) - 1)


def _edge(edges: list[int], value: int) -> int:
    return edges[min(bisect_left(edges, value), len(edges) - 1)]
