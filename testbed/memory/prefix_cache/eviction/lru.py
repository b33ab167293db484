"""Least recently used."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node


class Lru(EvictionOrder):
    """Evicts what has been evictable longest; the end of a sequence before its beginning."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Node, None] = OrderedDict()

    def add(self, nodes: Sequence[Node]) -> None:
        queue = self._queue
        for node in nodes:
            queue[node] = None

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._queue.pop(node, None)

    def victim(self) -> Node:
        return self._queue.popitem(last=False)[0]

    def victims(self, count: int) -> list[Node]:
        take = self._queue.popitem
        return [take(last=False)[0] for _ in range(count)]

    def upcoming(self, count: int) -> list[Node]:
        """The next `count` victims, or all if there are fewer; changes nothing."""
        return list(islice(self._queue, count))
