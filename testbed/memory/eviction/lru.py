"""Least recently used."""

from collections import OrderedDict
from collections.abc import Sequence

from testbed.memory.eviction.order import EvictionOrder
from testbed.memory.prefix_index import Node


class Lru(EvictionOrder):
    """Evicts what has been parked longest; the end of a sequence before its beginning."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def park(self, nodes: Sequence[Node]) -> None:
        queue = self._queue
        for node in nodes:
            queue[node] = None

    def hit(self, nodes: Sequence[Node]) -> None:
        queue = self._queue
        for node in nodes:
            if node.parked:
                del queue[node]

    def victim(self) -> Node:
        return self._queue.popitem(last=False)[0]
