"""First in, first out."""

from itertools import count

from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class Fifo(Ranked):
    """Evicts what was parked for the first time longest ago; a hit changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._arrivals = count()

    def rank(self, node: Node) -> int:
        if node.memo is None:
            node.memo = next(self._arrivals)
        rank: int = node.memo
        return rank
