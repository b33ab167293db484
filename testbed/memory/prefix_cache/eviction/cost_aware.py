"""Greedy-Dual: blocks that are cheap to recompute are evicted first."""

from collections.abc import Iterator, Sequence

from testbed.core.units import NonNegative
from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class CostAware(Ranked):
    """Evicts the block of least worth among the ends of chains. A block's worth is the cost to
    recompute it times its uses, plus the floor at its last use; the floor rises with evictions, so
    that blocks which are not used any more become the least worth.

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
        return next(self.victims(1))

    def victims(self, count: int) -> Iterator[Node]:
        """The blocks of least worth with nothing cached behind them. Blocks of less worth that have
        something behind them are set aside in `_inner` until their last child is evicted.
        """
        inner = self._inner
        for _ in range(count):
            while self._num_unreferenced > len(inner):
                node = self._pop()
                if not node.children:
                    break
                inner[node] = None
            else:
                node = next(iter(inner))
                del inner[node]
            self._num_unreferenced -= 1
            if node.memo > self._floor:
                self._floor = node.memo
            parent = node.parent
            if parent in inner and parent.children == 1:
                del inner[parent]
                self._push(parent, parent.memo)
            yield node
