"""The device's pool of a cache hierarchy, whose blocks transfers may pin."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node
from testbed.memory.tiers.lower_tier import Pins


class PinnedPool(CachingPool):
    """A block that a transfer reads is not taken before that has landed, though no table has it.

    `pins` counts the transfers that need a block; one that is in `kept` too is not evicted
    meanwhile. Pinned blocks that store nothing any more were victims, and become free when
    unpinned. `arriving` blocks are being written. `evicting` is called with each victim, before its
    block stores nothing any more.
    """

    __slots__ = ("arriving", "evicting", "kept", "pins")

    def __init__(
        self, num_blocks: int, order: EvictionOrder, evicting: Callable[[Node], None]
    ) -> None:
        super().__init__(num_blocks, order)
        self.evicting = evicting
        self.pins = Pins[int]()
        self.kept = Pins[int]()
        self.arriving: set[int] = set()

    @property
    def num_evictable(self) -> int:
        return self.num_unreferenced - len(self.pinned())

    def pinned(self) -> list[int]:
        """Parked blocks that a transfer needs."""
        holder = self.index.holder
        return [
            block for block in self.pins if (node := holder[block]) is not None and node.evictable
        ]

    def in_transit(self) -> list[int]:
        evicted = sorted(block for block in self.pins if self.index.holder[block] is None)
        return [*self.pinned(), *evicted, *sorted(self.arriving)]

    def pin(self, nodes: Iterable[Node]) -> list[int]:
        """A transfer needs the blocks of these nodes, and unpins them when it has landed."""
        blocks = [node.block for node in nodes]
        self.pins.add(blocks)
        return blocks

    def unpin(self, blocks: Collection[int]) -> None:
        self.free += [block for block in self.pins.drop(blocks) if self.index.holder[block] is None]

    def arrived(self, nodes: Sequence[Node], blocks: Sequence[int]) -> None:
        """A transfer has written what `nodes`, which are kept, store to `blocks`: evictable now, or
        free if it was there already.
        """
        evictable: list[Node] = []
        for node, block in zip(nodes, blocks, strict=True):
            self.arriving.remove(block)
            if node.block == TOMBSTONE:
                self.index.fill(node, block)
                node.evictable = True
                evictable.append(node)
            else:
                self.free.append(block)
            self.index.dereference(node)
        self.num_unreferenced += len(evictable)
        self.order.add(evictable[::-1])

    def evict(self, count: int) -> None:
        aside, freed, kept = list[Node](), list[int](), self._kept_nodes()
        for node in kept:
            node.evictable = False  # an order with ghosts passes over it, as over a held one
        while len(freed) < count:
            blocks = self.index.drop(self._victims(count - len(freed), aside))
            self.evictions += len(blocks)
            self.num_unreferenced -= len(blocks)
            freed += [block for block in blocks if block not in self.pins]
        for node in kept:
            node.evictable = True
        self.free[:0] = freed[::-1]
        self.order.add(aside)
        self.were_cached = [True] * count

    def _victims(self, count: int, aside: list[Node]) -> Iterator[Node]:
        """The next `count` victims, but for those that are kept, which are put aside."""
        for node in self.order.victims(count):
            if node.evictable:
                self.evicting(node)
                yield node
            else:
                aside.append(node)

    def _kept_nodes(self) -> list[Node]:
        nodes = [self.index.holder[block] for block in self.kept]
        return [node for node in nodes if node is not None and node.evictable]

    def unpublish(self, blocks: Iterable[int]) -> None:
        """A block that a transfer reads stays findable."""
        super().unpublish(block for block in blocks if block not in self.pins)

    def evictable(self) -> list[int]:
        return [block for block in super().evictable() if block not in self.pins]

    def _settle(self, node: Node, block: int) -> None:
        replaced = node.block if node.evictable else TOMBSTONE
        super()._settle(node, block)
        if replaced in self.pins:
            self.free.pop()  # it was put there just now
