"""The leaves of a tree of runs in the order in which they are evicted."""

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from testbed.memory.radix.strategies import Rank, Strategy

if TYPE_CHECKING:
    from testbed.memory.radix.tree import Run

Entry = tuple[Rank, int, "Run"]  # the number orders equal ranks


class LeafQueue:
    """Leaves in the order of a strategy. An entry counts while its leaf has this rank, and
    may_leave agrees.
    """

    def __init__(self, rank: Strategy, may_leave: Callable[["Run"], bool]) -> None:
        self._rank = rank
        self._may_leave = may_leave
        self._num_entries = 0
        self._most = 1000
        self._entries: list[Entry] = []

    def offer(self, leaf: "Run") -> None:
        """Note a leaf that may leave from now on, or has another rank."""
        self._num_entries += 1
        heapq.heappush(self._entries, (self._rank(leaf), self._num_entries, leaf))
        if len(self._entries) > self._most:
            self._forget_outdated()

    def __iter__(self) -> Iterator["Run"]:
        """Take the leaves, the first to be evicted first."""
        while self._entries:
            entry = heapq.heappop(self._entries)
            if self._counts(entry):
                yield entry[2]

    @property
    def leaves(self) -> set["Run"]:
        """Those that it has."""
        return {entry[2] for entry in self._entries if self._counts(entry)}

    def _counts(self, entry: Entry) -> bool:
        rank, _, leaf = entry
        return self._may_leave(leaf) and self._rank(leaf) == rank

    def _forget_outdated(self) -> None:
        """Keep the first entry of each leaf that counts; next when there are twice as many."""
        first = dict["Run", Entry]()
        for entry in sorted(filter(self._counts, self._entries)):
            first.setdefault(entry[2], entry)
        self._entries = list(first.values())  # in order, so a heap
        self._most = 2 * len(self._entries) + 1000
