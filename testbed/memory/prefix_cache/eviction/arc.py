"""Adaptive replacement (Megiddo and Modha, FAST 2003)."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node

Queue: TypeAlias = OrderedDict[Node, None]
Ghosts: TypeAlias = OrderedDict[int, None]


class Arc(EvictionOrder):
    """Two LRU queues, of nodes found once and more often, whose balance follows hits on what each
    has evicted.

    `target` is the wanted length of `recent`. The cache's size is the length of both queues,
    because a victim is chosen only when there is no free block. A held node, which was found and so
    is `frequent`, leaves that queue where it comes up, and returns to its end when it is evictable
    again: its memo says so. Ghosts are known by their chained hash; a collision there moves only
    the target.
    """

    def __init__(self) -> None:
        self.target = 0.0
        self._recent: Queue = OrderedDict()
        self._frequent: Queue = OrderedDict()
        self._recent_ghosts: Ghosts = OrderedDict()
        self._frequent_ghosts: Ghosts = OrderedDict()

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self._frequent:
                self._frequent.move_to_end(node)
            elif node.memo:
                self._frequent[node] = None
                node.memo = None
            else:
                self._enter(node)

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self._recent:
                del self._recent[node]
                self._frequent[node] = None
            elif node in self._frequent:
                self._frequent.move_to_end(node)

    def victim(self) -> Node:
        prefer_recent = len(self._recent) > self.target or not self._frequent
        queues = [(self._recent, self._recent_ghosts), (self._frequent, self._frequent_ghosts)]
        for queue, ghosts in queues if prefer_recent else queues[::-1]:
            for _ in range(len(queue)):
                node, _ = queue.popitem(last=False)
                if node.evictable:
                    self._remember(node, ghosts)
                    return node
                node.memo = True
        raise IndexError("no node is evictable")

    def _enter(self, node: Node) -> None:
        """A node that is new to the cache, unless a ghost says that it left too early."""
        recent, frequent, size = (
            self._recent_ghosts,
            self._frequent_ghosts,
            len(self._recent) + len(self._frequent),
        )
        queue = self._frequent
        if node.code in recent:
            self.target = min(size, self.target + max(1.0, len(frequent) / len(recent)))
            del recent[node.code]
        elif node.code in frequent:
            self.target = max(0.0, self.target - max(1.0, len(recent) / len(frequent)))
            del frequent[node.code]
        elif not node.hits:
            queue = self._recent
        queue[node] = None

    def _remember(self, node: Node, ghosts: Ghosts) -> None:
        """Keep as many ghosts as blocks, and no more of `recent` than that queue leaves."""
        ghosts[node.code] = None
        size = len(self._recent) + len(self._frequent) + 1
        while self._recent_ghosts and len(self._recent) + len(self._recent_ghosts) > size:
            self._recent_ghosts.popitem(last=False)
        while len(self._recent_ghosts) + len(self._frequent_ghosts) > size:
            (self._frequent_ghosts or self._recent_ghosts).popitem(last=False)
