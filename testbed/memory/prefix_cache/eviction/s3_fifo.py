"""S3-FIFO (Yang et al., SOSP 2023): three queues without any reordering on a hit."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from testbed.core.errors import InputError
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node

MOST_CREDIT = 3
ABSENT, QUEUED = -1, 0


class S3Fifo(EvictionOrder):
    """New nodes pass through `small`, a tenth of the cache; those found twice there, or back soon, go to `main`.

    A node's credit (its memo) is its hits since it came to its queue, at most three; in `main` each buys another
    round. A held node that comes up leaves its queue, and enters `main` when it is parked again: ticket tells whether a
    node is queued. Ghosts are as many as nodes in `main`, known by their chained hash; a collision there lets a new
    node into `main`.
    """

    def __init__(self, small_share: float = 0.1) -> None:
        if not 0 < small_share < 1:
            raise InputError(f"small_share is {small_share}; it must be a share of the cache, above 0 and below 1")
        self.small_share = small_share
        self._small: deque[Node] = deque()
        self._main: deque[Node] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._num_parked = 0

    def __len__(self) -> int:
        return self._num_parked

    def park(self, nodes: Sequence[Node]) -> None:
        self._num_parked += len(nodes)
        for node in nodes:
            if node.ticket == ABSENT:
                known = node.memo is not None or node.code in self._ghosts
                self._ghosts.pop(node.code, None)
                (self._main if known else self._small).append(node)
                node.ticket = QUEUED
            node.memo = node.memo or 0

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._num_parked -= node.parked
            if node.memo is not None:
                node.memo = min(node.memo + 1, MOST_CREDIT)

    def victim(self) -> Node:
        self._num_parked -= 1
        while True:
            num_slots = self.small_share * (len(self._small) + len(self._main))
            node = self._from_small() if self._small and len(self._small) >= num_slots else self._from_main()
            if node is not None:
                return node

    def _from_small(self) -> Node | None:
        node = self._small.popleft()
        node.ticket = ABSENT
        if not node.parked:
            return None
        if node.memo > 1:
            self._to_main(node, 0)
            return None
        self._ghosts[node.code] = None
        while len(self._ghosts) > max(len(self._main), 1):
            self._ghosts.popitem(last=False)
        return node

    def _from_main(self) -> Node | None:
        node = self._main.popleft()
        node.ticket = ABSENT
        if node.parked and not node.memo:
            return node
        if node.parked:
            self._to_main(node, node.memo - 1)
        return None

    def _to_main(self, node: Node, credit: int) -> None:
        node.memo, node.ticket = credit, QUEUED
        self._main.append(node)
