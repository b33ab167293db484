"""LRU-K (O'Neil, O'Neil and Weikum, SIGMOD 1993)."""

from collections.abc import Sequence
from typing import TypeAlias

from testbed.core.units import PositiveCount
from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node

NEVER = -1
Uses: TypeAlias = tuple[int, ...]  # the last k uses, the latest last


class LruK(Ranked):
    """Evicts the block whose k-th last use is longest ago. Blocks with fewer uses go before all
    others, the least recently used first. Time counts the uses of all blocks, and an evicted block
    is forgotten.
    """

    def __init__(self, k: PositiveCount = 2) -> None:
        super().__init__()
        self.k = k
        self._time = 0

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is None:
                self._use(node)
        super().add(nodes)

    def hit(self, nodes: Sequence[Node]) -> None:
        super().hit(nodes)
        for node in nodes:
            self._use(node)

    def rank(self, node: Node) -> tuple[int, int]:
        uses: Uses = node.memo
        kth = uses[0] if len(uses) == self.k else NEVER
        return kth, uses[-1]

    def _use(self, node: Node) -> None:
        self._time += 1
        node.memo = (*(node.memo or ()), self._time)[-self.k :]
