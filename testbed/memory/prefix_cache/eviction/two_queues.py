"""2Q (Johnson and Shasha, VLDB 1994)."""

from collections import OrderedDict
from collections.abc import Sequence

from testbed.core.units import Share
from testbed.memory.prefix_cache.eviction.ghosts import Ghosts
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node


class TwoQueues(EvictionOrder):
    """A block enters a FIFO queue. If it comes back after that queue has evicted it, while a ghost
    remembers it, it enters an LRU queue. The FIFO queue gives the victim while it is longer than
    its share of the pool.

    A hit in the FIFO queue changes nothing. Blocks that are held by a request count in the length
    of their queue and are no victims: the next block in that queue is, then one of the other queue.
    """

    def __init__(self, recent_share: Share = 0.25, ghost_share: Share = 0.5) -> None:
        self.recent_share = recent_share
        self.ghost_share = ghost_share
        self._recent: OrderedDict[Node, None] = OrderedDict()
        self._frequent: OrderedDict[Node, None] = OrderedDict()
        self._ghosts = Ghosts()

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is None:
                self._enter(node)
            elif node in self._frequent:
                self._frequent.move_to_end(node)
        self._ghosts.trim(int(self.num_blocks * self.ghost_share))

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self._frequent:
                self._frequent.move_to_end(node)

    def victim(self) -> Node:
        queues = [self._recent, self._frequent]
        if len(self._recent) <= int(self.num_blocks * self.recent_share):
            queues.reverse()
        for queue in queues:
            node = first_evictable(queue)
            if node is not None:
                del queue[node]
                if queue is self._recent:
                    self._ghosts.remember(node.code)
                return node
        raise IndexError("no node is evictable")

    def _enter(self, node: Node) -> None:
        self._recent.pop(node, None)
        self._frequent.pop(node, None)
        node.memo = True
        queue = self._frequent if self._ghosts.take(node.code) else self._recent
        queue[node] = None


def first_evictable(queue: OrderedDict[Node, None]) -> Node | None:
    """The first evictable node, if there is one."""
    return next((node for node in queue if node.evictable), None)
