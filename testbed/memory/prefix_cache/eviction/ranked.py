"""Orders that evict the parked node of the lowest rank: first in, first out; least frequently
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
    """A heap by rank, fixed while parked; ties go to the first parked. A hit leaves an entry with a
    stale ticket.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Node]] = []
        self._tickets = count()
        self._num_parked = 0

    @abstractmethod
    def rank(self, node: Node) -> Any:
        """The rank of a node that is parked now."""

    def park(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._push(node, self.rank(node))
        self._num_parked += len(nodes)
        if len(self._heap) > 64 + 2 * self._num_parked:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].ticket]
            heapq.heapify(self._heap)

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.parked:
                node.ticket = NO_TICKET
                self._num_parked -= 1

    def victim(self) -> Node:
        self._num_parked -= 1
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
    """Evicts what was parked for the first time longest ago; a hit changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._arrivals = count()

    def rank(self, node: Node) -> int:
        if node.memo is None:
            node.memo = next(self._arrivals)
        return int(node.memo)


class Lfu(Ranked):
    """Evicts what the fewest prompts have found; among equals what has been parked longest."""

    def rank(self, node: Node) -> int:
        return node.hits
