"""W-TinyLFU (Einziger, Friedman and Manes, ACM Transactions on Storage 2017)."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

from testbed.core.units import PositiveCount, Share
from testbed.memory.prefix_cache.eviction.frequencies import Frequencies
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.eviction.two_queues import first_evictable
from testbed.memory.prefix_cache.prefix_index import Node

Queue: TypeAlias = OrderedDict[Node, None]


class WTinyLfu(EvictionOrder):
    """New blocks enter a small window (LRU). The block that leaves it competes with the next victim
    of the main cache: the one with fewer uses of late is evicted, the newcomer if they are equal.

    The main cache is a segmented LRU: a block enters the probation segment, and a hit there moves
    it to the protected one, whose oldest block returns to probation if it is full. Uses are counted
    exactly over the last `sample_pools` * num_blocks uses.

    libCacheSim counts them in a Bloom filter whose counters blocks share; it counts hits of the
    main cache, insertions and exits from the window, not hits of the window; it halves all after
    32 hits for each block of the main cache; and it fills the protected segment with newcomers
    while the pool fills. Hits differ by these rules.
    """

    def __init__(
        self,
        window_share: Share = 0.01,
        protected_share: Share = 0.8,
        sample_pools: PositiveCount = 10,
    ) -> None:
        self.window_share = window_share
        self.protected_share = protected_share
        self.sample_pools = sample_pools
        self._window: Queue = OrderedDict()
        self._probation: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()
        self._uses = Frequencies()

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is None:
                self._count(node)
                self._enter(node)

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._count(node)
            if node in self._window:
                self._window.move_to_end(node)
            elif node in self._protected:
                self._protected.move_to_end(node)
            elif node in self._probation:
                self._promote(node)

    def victim(self) -> Node:
        rival = first_evictable(self._probation) or first_evictable(self._protected)
        candidate = first_evictable(self._window)
        if candidate is None or len(self._window) < self._window_size:
            return self._evict(rival or candidate)
        if rival is None or self._uses.of(candidate.code) <= self._uses.of(rival.code):
            return self._evict(candidate)
        del self._window[candidate]
        self._probation[candidate] = None
        return self._evict(rival)

    @property
    def _window_size(self) -> int:
        return max(1, int(self.num_blocks * self.window_share))

    def _count(self, node: Node) -> None:
        self._uses.count(node.code, self.sample_pools * self.num_blocks)

    def _enter(self, node: Node) -> None:
        """A block that is new to the cache; while the main cache has room the window is emptied
        into it.
        """
        for queue in (self._window, self._probation, self._protected):
            queue.pop(node, None)
        node.memo = True
        self._window[node] = None
        main_size = self.num_blocks - self._window_size
        while (
            len(self._window) > self._window_size
            and len(self._probation) + len(self._protected) < main_size
        ):
            oldest, _ = self._window.popitem(last=False)
            self._probation[oldest] = None

    def _promote(self, node: Node) -> None:
        del self._probation[node]
        self._protected[node] = None
        main_size = self.num_blocks - self._window_size
        if len(self._protected) > max(1, int(main_size * self.protected_share)):
            oldest, _ = self._protected.popitem(last=False)
            self._probation[oldest] = None

    def _evict(self, node: Node | None) -> Node:
        if node is None:
            raise IndexError("no node is evictable")
        for queue in (self._window, self._probation, self._protected):
            queue.pop(node, None)
        return node
