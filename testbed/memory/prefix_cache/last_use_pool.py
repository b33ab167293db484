"""A pool as vLLM V1 keeps it: unheld blocks leave in order of last use; equal contents may lie in several blocks."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from testbed.core.slots import Growth
from testbed.memory.paged.block_index import BlockIndex
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.prefix_index import HOLE, HashOf, Node


class LastUsePool(CachingPool):
    """Unreferenced blocks form one queue, cached or not; the first is allocated, and its content is then not findable.

    A block that was never used comes before all of them. With uncached_first (vLLM 0.33) so does one that holds no
    full block of known content; without it (0.19) such a block waits for its turn like the cached ones.

    A published block keeps its content though another block has the same: node.block is the one that was published
    first, which is found, and `copies` holds the others in order. The end of the first makes the next one findable.
    """

    __slots__ = ("copies", "queue", "uncached_first", "were_cached")

    def __init__(self, num_blocks: int, uncached_first: bool, hash_of: HashOf = hash) -> None:
        super().__init__(num_blocks, Lru(), hash_of)
        self.uncached_first = uncached_first
        self.queue: OrderedDict[int, None] = OrderedDict()
        self.copies: dict[Node, list[int]] = {}
        self.were_cached: list[bool] = []

    @property
    def num_free(self) -> int:
        return len(self.free) + len(self.queue) - self.num_parked

    def hold(self, nodes: Sequence[Node]) -> int:
        for node in nodes:
            if node.parked:
                del self.queue[node.block]
        return super().hold(nodes)

    def put(self, blocks: list[int]) -> int:
        if self.sharers:
            blocks = [block for block in blocks if not self.drop(block)]
        for block in reversed(blocks):
            node = self.index.holder[block]
            if node is not None:
                self.num_parked += 1
                node.parked = node.parked or node.block == block
            if node is not None or not self.uncached_first:
                self.queue[block] = None
            else:
                self.free.append(block)
        return len(blocks)

    def evict(self, count: int) -> None:
        """Free the first `count` blocks of the queue, which must be there; were_cached says which of them were."""
        taken = [self.queue.popitem(last=False)[0] for _ in range(count)]
        self.were_cached = [self._forget(block) for block in taken]
        self.free[:0] = reversed(taken)  # behind those that were free before

    def evicted(self, index: BlockIndex, num_steps: int, num_free: int) -> Growth:
        return index.marked(num_steps, [False] * num_free + self.were_cached)

    def parked(self) -> list[int]:
        return sorted(block for block in self.queue if self.index.holder[block] is not None)

    def check(self, tables: Iterable[list[int]]) -> None:
        parked = self.parked()
        assert len(parked) == self.num_parked, "parked blocks are miscounted"
        for node in self.index.holder:
            assert node is None or node.parked == (node.block in self.queue), "a held block may be evicted"
        self.index.check({block: node for node, blocks in self.copies.items() for block in blocks})
        self._check(tables, list(self.queue))

    def _forget(self, block: int) -> bool:
        """The block stores nothing any more; whether it was cached."""
        holder = self.index.holder
        node = holder[block]
        if node is None:
            return False
        self.num_parked -= 1
        self.evictions += 1
        others = self.copies.get(node, [])
        if block in others:
            others.remove(block)
            holder[block] = None
        elif others:
            self.index.fill(node, others.pop(0))
            node.parked = node.block in self.queue
        else:
            self.index.drop([node])
        if not others:
            self.copies.pop(node, None)
        return True

    def _settle(self, node: Node, block: int) -> None:
        if node.block == HOLE:
            self.index.fill(node, block)
        else:
            self.index.holder[block] = node
            self.copies.setdefault(node, []).append(block)
