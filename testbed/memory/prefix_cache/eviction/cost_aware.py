"""Greedy-Dual: what is cheap to recompute goes first."""

from collections.abc import Sequence

from testbed.core.units import NonNegative
from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class CostAware(Ranked):
    """Evicts the end of a chain that is least worth keeping: recompute cost times uses, aged by a
    rising floor.

    Recomputing costs 1 + attention_share * depth: attention to all blocks before it, as a share of
    the dense layers (block_size / 53 thousand tokens for Llama-3-70B). A block goes only when
    nothing is cached behind it, since without its predecessors a block is worth nothing. The floor
    is the last victim's worth (GreedyDual-Size-Frequency, equal sizes).
    """

    def __init__(self, attention_share: NonNegative = 0.01) -> None:
        super().__init__()
        self.attention_share = attention_share
        self._floor = 0.0
        self._inner: dict[Node, None] = {}

    def rank(self, node: Node) -> float:
        worth: float = (1 + node.hits) * (1 + self.attention_share * node.depth)
        node.memo = self._floor + worth
        return self._floor + worth

    def hit(self, nodes: Sequence[Node]) -> None:
        super().hit(nodes)
        for node in nodes:
            self._inner.pop(node, None)

    def victim(self) -> Node:
        node = self._leaf()
        parent = node.parent
        self._floor = max(self._floor, node.memo)
        if parent is not None and parent in self._inner and parent.children == 1:
            del self._inner[parent]
            self._push(parent, parent.memo)
        return node

    def _leaf(self) -> Node:
        """The lowest of those with nothing behind; inner nodes that come first wait for their last
        child.
        """
        while self._num_unreferenced > len(self._inner):
            node = self._pop()
            if not node.children:
                break
            self._inner[node] = None
        else:
            node = next(iter(self._inner))
            del self._inner[node]
        self._num_unreferenced -= 1
        return node
