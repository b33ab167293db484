"""S3-FIFO (Yang et al., SOSP 2023): three FIFO queues."""

from collections import OrderedDict
from collections.abc import Sequence

from testbed.core.units import PositiveCount, Share
from testbed.memory.prefix_cache.eviction.ghosts import Ghosts
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node

MOST_USES = 3  # that a block in the main queue is credited with


class S3Fifo(EvictionOrder):
    """A block enters a small queue, or the main queue if a ghost remembers it.

    At the head of the small queue a block that was found `promote_at` times moves to the main
    queue, another is evicted and leaves a ghost. At the head of the main queue a block that was
    found goes to the end, with one use fewer, and another is evicted. The main queue gives the
    victim while it is longer than its share of the pool, or the small one is empty.

    Until the first eviction, blocks that the small queue has no room for enter the main queue, as
    in libCacheSim, so that the pool fills as it will be divided.

    node.memo counts the prompts that have found a block in its queue. A held block at the head of a
    queue counts as found.
    """

    def __init__(
        self,
        small_share: Share = 0.1,
        ghost_share: Share = 0.9,
        promote_at: PositiveCount = 2,
    ) -> None:
        self.small_share = small_share
        self.ghost_share = ghost_share
        self.promote_at = promote_at
        self._small: OrderedDict[Node, None] = OrderedDict()
        self._main: OrderedDict[Node, None] = OrderedDict()
        self._ghosts = Ghosts()
        self._has_evicted = False

    @property
    def _small_size(self) -> int:
        return int(self.num_blocks * self.small_share)

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is None:
                self._enter(node)
        self._ghosts.trim(int(self.num_blocks * self.ghost_share))

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is not None:
                node.memo += 1

    def victim(self) -> Node:
        self._has_evicted = True
        queues = [self._from_main, self._from_small]
        if self._small and len(self._main) <= self.num_blocks - self._small_size:
            queues.reverse()
        for choose in (*queues, self._from_main):  # the small queue may have moved all to the main
            node = choose()
            if node is not None:
                return node
        raise IndexError("no node is evictable")

    def _enter(self, node: Node) -> None:
        self._small.pop(node, None)
        self._main.pop(node, None)
        node.memo = 0
        is_filling = not self._has_evicted and len(self._small) >= self._small_size
        returns = self._ghosts.take(node.code)
        queue = self._main if returns or is_filling else self._small
        queue[node] = None

    def _from_small(self) -> Node | None:
        """The first block of the small queue that does not move to the main queue, if there is
        one.
        """
        while self._small:
            node, _ = self._small.popitem(last=False)
            if node.evictable and node.memo < self.promote_at:
                self._ghosts.remember(node.code)
                return node
            if node.block != TOMBSTONE:
                node.memo = 0
                self._main[node] = None
        return None

    def _from_main(self) -> Node | None:
        """The first block of the main queue that is not sent to its end, if there is one."""
        for _ in range((MOST_USES + 1) * len(self._main)):
            node, _ = self._main.popitem(last=False)
            if node.evictable and not node.memo:
                return node
            if node.block != TOMBSTONE:
                node.memo = max(0, min(node.memo, MOST_USES) - 1)
                self._main[node] = None
        return None
