"""Least recently used."""

from collections import deque
from collections.abc import Iterator, Sequence

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node


class Lru(EvictionOrder):
    """Evicts what has been parked longest; the end of a sequence before its beginning.

    A node joins the queue each time it is parked, and only its last place counts: ticket is the number of places
    before that one, so a hit costs nothing.
    """

    def __init__(self) -> None:
        self._queue: deque[Node] = deque()
        self._most = 64

    def park(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            node.ticket += 1
        self._queue.extend(nodes)
        if len(self._queue) > self._most:
            self._shorten()

    def hit(self, nodes: Sequence[Node]) -> None:
        """Nothing to do: its place no longer counts once it is parked again."""

    def victim(self) -> Node:
        return next(self.victims(1))

    def victims(self, count: int) -> Iterator[Node]:
        take = self._queue.popleft
        while count:
            node = take()
            node.ticket -= 1
            if node.ticket < 0 and node.parked:
                count -= 1
                yield node

    def upcoming(self, count: int) -> list[Node]:
        """The next `count` victims, or all if there are fewer; changes nothing."""
        found, passed = list[Node](), dict[Node, int]()
        for node in self._queue:
            if len(found) == count:
                break
            seen = passed[node] = passed.get(node, -1) + 1
            if seen == node.ticket and node.parked:
                found.append(node)
        return found

    def _shorten(self) -> None:
        last = list(dict.fromkeys(reversed(self._queue)))
        for node in last:
            node.ticket = 0
        self._queue = deque(reversed(last))
        self._most = 64 + 2 * len(last)
