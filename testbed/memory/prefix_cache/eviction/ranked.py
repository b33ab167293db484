"""Orders that evict the evictable node of the lowest rank: first in, first out; least frequently
used.
"""

import heapq
from abc import abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Any

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node

NO_TICKET = -1


class Ranked(EvictionOrder):
    """A heap by rank, fixed while evictable; ties go to the first that became evictable. A hit
    leaves an entry with a stale ticket.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Node]] = []
        self._tickets = count()
        self._num_unreferenced = 0

    @abstractmethod
    def rank(self, node: Node) -> Any:
        """The rank of a node that is evictable now."""

    def add(self, nodes: Sequence[Node]) -> None:
        rank, push = self.rank, self._push
        for node in nodes:
            push(node, rank(node))
        self._num_unreferenced += len(nodes)
        if len(self._heap) > 64 + 2 * self._num_unreferenced:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].ticket]
            heapq.heapify(self._heap)

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.evictable:
                node.ticket = NO_TICKET
                self._num_unreferenced -= 1

    def victim(self) -> Node:
        self._num_unreferenced -= 1
        return self._pop()

    def _push(self, node: Node, rank: Any) -> None:
        node.ticket = next(self._tickets)
        heapq.heappush(self._heap, (rank, node.ticket, node))

    def _pop(self) -> Node:
        while True:
            _, ticket, node = heapq.heappop(self._heap)
            if ticket == node.ticket:
                node.ticket = NO_TICKET
                return node


class Fifo(Ranked):
    """Evicts what was evictable for the first time longest ago; a hit changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._arrivals = count()

    def rank(self, node: Node) -> int:
        if node.memo is None:
            node.memo = next(self._arrivals)
        return int(node.memo)


class Lfu(Ranked):
    """Evicts what the fewest prompts have found; among equals what has been evictable longest."""

    def rank(self, node: Node) -> int:
        return node.hits
