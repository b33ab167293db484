"""The pools of a cache hierarchy: the device's, whose blocks transfers may pin, and those of the
tiers below.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Key, Node


OnChange: TypeAlias = Callable[[], None]


class Owner(Protocol):
    """Whose pool it is; an object, because the compiler's bound methods keep their object when a
    policy is copied.
    """

    def evicting(self, node: Node) -> None:
        """A victim, before its block stores nothing any more."""


class Pins(dict[int, int]):
    """How many transfers need a block."""

    def add(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self[block] = self.get(block, 0) + 1

    def drop(self, blocks: Iterable[int]) -> list[int]:
        """One transfer less needs these blocks; returns those that none needs any more."""
        for block in blocks:
            self[block] -= 1
        unpinned = [block for block in blocks if not self[block]]
        for block in unpinned:
            del self[block]
        return unpinned


class PinnedPool(CachingPool):
    """A block that a transfer reads is not taken by anyone else before that has landed, though no
    table has it.

    `pins` counts the transfers that need a block; one that is in `kept` too is not evicted
    meanwhile. Those that store nothing any more were victims while pinned, and become free when
    unpinned. `arriving` blocks are being written. The owner hears of each victim.
    """

    __slots__ = ("arriving", "kept", "owner", "pins")

    def __init__(self, num_blocks: int, order: EvictionOrder, owner: Owner) -> None:
        super().__init__(num_blocks, order)
        self.owner = owner
        self.pins = Pins()
        self.kept = Pins()
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

    def unpin(self, blocks: Iterable[int]) -> None:
        self.free += [block for block in self.pins.drop(blocks) if self.index.holder[block] is None]

    def arrived(self, nodes: Sequence[Node], blocks: Sequence[int]) -> None:
        """A transfer has written what `nodes`, which are kept, store to `blocks`: evictable now, or
        free where it was there already.
        """
        evictable = list[Node]()
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
        aside, freed = list[Node](), list[int]()
        while len(freed) < count:
            node = self.order.victim()
            if node.block in self.kept:
                aside.append(node)
                continue
            self.owner.evicting(node)
            self.evictions += 1
            self.num_unreferenced -= 1
            (block,) = self.index.drop([node])
            if block not in self.pins:
                freed.append(block)
        self.free[:0] = freed[::-1]
        self.order.add(aside)
        self.were_cached = [True] * count

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


class LowerTier:
    """Blocks by the keys of what they store, the least recently used first to be evicted. One
    engine uses the tier, or several, each with its own nodes of the same keys.

    `arriving` blocks are being written and store nothing yet; `pins` counts the transfers that read
    a block. on_change: who hears, if anybody does, that other content can be found here than
    before.
    """

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.blocks: OrderedDict[Key, int] = OrderedDict()
        self.arriving: dict[Key, int] = {}
        self.pins = Pins()
        self.on_change: OnChange | None = None
        self._free = list(range(num_blocks))[::-1]

    def __contains__(self, node: Node) -> bool:
        """Whether this tier stores the content of the node, or a transfer brings it."""
        return node.key in self.blocks or node.key in self.arriving

    def has(self, node: Node) -> bool:
        """Whether this tier stores the content of the node."""
        return node.key in self.blocks

    def take(self, node: Node) -> int | None:
        """A block for the content of a node that is not here, free or of the evicted one; None
        where all are pinned.
        """
        if not self._free:
            unpinned = (key for key, block in self.blocks.items() if block not in self.pins)
            victim = next(unpinned, None)
            if victim is None:
                return None
            self._drop(victim)
        block = self.arriving[node.key] = self._free.pop()
        return block

    def slots(self, size: int) -> NonSequenceSlots:
        cached, in_transit = (
            tuple(Extent(block * size, size) for block in blocks.values())
            for blocks in (self.blocks, self.arriving)
        )
        return NonSequenceSlots(cached=cached, in_transit=in_transit)

    def arrived(self, nodes: Sequence[Node], blocks: Sequence[int]) -> None:
        """The blocks that were taken for these nodes, from the first on in a prompt, store their
        content now.
        """
        for node, block in zip(reversed(nodes), reversed(blocks), strict=True):
            del self.arriving[node.key]
            self.blocks[node.key] = block
        self._changed()

    def give_up(self, nodes: Iterable[Node]) -> None:
        """What a transfer was to bring will not come."""
        self._free += [self.arriving.pop(node.key) for node in nodes]
        self._changed()

    def touch(self, nodes: Sequence[Node]) -> None:
        """A prompt uses this content; the end of a prompt is evicted before its beginning."""
        for node in reversed(nodes):
            if node.key in self.blocks:
                self.blocks.move_to_end(node.key)

    def pin(self, nodes: Iterable[Node]) -> list[int]:
        """A transfer reads the blocks of these nodes, and unpins them when it has landed."""
        blocks = [self.blocks[node.key] for node in nodes]
        self.pins.add(blocks)
        return blocks

    def unpin(self, blocks: Iterable[int]) -> None:
        self.pins.drop(blocks)

    def drop_unpinned(self, nodes: Iterable[Node]) -> None:
        """Forget the content of these nodes, which is here, but for what a transfer reads."""
        for node in nodes:
            if self.blocks[node.key] not in self.pins:
                self._drop(node.key)

    def check(self) -> None:
        """Raise AssertionError where blocks were lost, or pins count what is not here."""
        used = [*self.blocks.values(), *self.arriving.values()]
        assert sorted(used + self._free) == list(range(self.num_blocks)), (
            f"blocks of the {self.name} were lost"
        )
        assert self.pins.keys() <= set(self.blocks.values()), (
            f"the {self.name} pins what it does not have"
        )

    def _drop(self, key: Key) -> None:
        self._free.append(self.blocks.pop(key))
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
