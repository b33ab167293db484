"""A complete eviction order outside the package: two segments, of which blocks that were found
leave the cache last (segmented LRU).
"""

from collections import OrderedDict
from collections.abc import Sequence

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node


class TwoSegments(EvictionOrder):
    """Evicts the least recently used block that no prompt has found; of found ones, a share of all
    evictable blocks is protected, and the oldest beyond that share wait with the others.
    """

    def __init__(self, protected_share: float = 0.8) -> None:
        self.protected_share = protected_share
        self.others: OrderedDict[Node, None] = OrderedDict()  # the next victim first
        self.protected: OrderedDict[Node, None] = OrderedDict()

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            segment = self.protected if node.hits else self.others
            segment[node] = None
        most = self.protected_share * (len(self.others) + len(self.protected))
        while len(self.protected) > most:
            oldest, _ = self.protected.popitem(last=False)
            self.others[oldest] = None

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.others.pop(node, None)
            self.protected.pop(node, None)

    def victim(self) -> Node:
        victim, _ = (self.others or self.protected).popitem(last=False)
        return victim
