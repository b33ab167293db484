"""GreedyDual-Size-Frequency (Cherkasova, 1998), for blocks of one size."""

from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class Gdsf(Ranked):
    """A block's worth is its uses plus the floor at its last use; the floor is the worth of the
    last victim. Among equals the block that has been evictable longest goes first.

    libCacheSim's takes a block in before it chooses the victim, with the floor of before, so that
    the newcomer itself may be the victim; here it never is, since a request needs all its blocks.
    That is the only difference on single blocks. `cost_aware` multiplies the uses by the cost to
    recompute a block, and keeps blocks that have others behind them.
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
