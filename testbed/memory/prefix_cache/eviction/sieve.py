"""SIEVE (Zhang et al., NSDI 2024): one queue, one bit a block, and a hand that does not go back."""

from collections import OrderedDict
from collections.abc import Sequence

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node


class Sieve(EvictionOrder):
    """The hand moves from the oldest block to the newest. It evicts the first block that no prompt
    has found since the hand passed it, and clears the bit of each block that it passes over.

    A block keeps its place when a prompt finds it; node.memo is its bit. The hand passes over a
    held block as over a block that was found.
    """

    def __init__(self) -> None:
        self._passed: OrderedDict[Node, None] = OrderedDict()  # older than the hand, oldest first
        self._ahead: OrderedDict[Node, None] = OrderedDict()  # from the hand to the newest block

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is None:
                self._passed.pop(node, None)
                self._ahead.pop(node, None)
                self._ahead[node] = None
                node.memo = False

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.memo is not None:
                node.memo = True

    def victim(self) -> Node:
        for _ in range(2 * (len(self._ahead) + len(self._passed))):
            node, _ = self._ahead.popitem(last=False)
            is_victim = node.evictable and not node.memo
            if not is_victim and node.block != TOMBSTONE:
                node.memo = False
                self._passed[node] = None
            if not self._ahead:  # behind the newest block the hand returns to the oldest
                self._passed, self._ahead = self._ahead, self._passed
            if is_victim:
                return node
        raise IndexError("no node is evictable")
