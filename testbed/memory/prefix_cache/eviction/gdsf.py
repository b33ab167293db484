"""GreedyDual-Size-Frequency (Cherkasova, 1998), for blocks of one size."""

from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class Gdsf(Ranked):
    """A block's worth is its uses plus the floor at its last use; the floor is the worth of the
    last victim. Among equals the block that has been evictable longest goes first.

    libCacheSim's keeps a block out while its worth is below that of the next victim; this order
    lets every block in. `cost_aware` multiplies the uses by the cost to recompute a block, and
    keeps blocks that have others behind them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._floor = 0

    def rank(self, node: Node) -> int:
        node.memo = self._floor + 1 + node.hits
        return int(node.memo)

    def victim(self) -> Node:
        node = super().victim()
        self._floor = node.memo
        return node
