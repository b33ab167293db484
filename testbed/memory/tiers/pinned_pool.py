"""A caching pool whose blocks may be pinned: those that a transfer reads or writes."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import HOLE, HashOf, Node


class Owner(Protocol):
    """Whose pool it is; an object, because the compiler's bound methods keep their object when a policy is copied."""

    def evicting(self, node: Node) -> None:
        """A victim, before its block stores nothing any more."""


class PinnedPool(CachingPool):
    """A block that a transfer reads is not taken by anyone else before that has landed, though no table has it.

    `pins` counts the transfers that need a block; one that is in `kept` too is not evicted meanwhile. num_pinned of the
    parked blocks are pinned, and do not count as parked. Those in `evicted_pinned` were victims while pinned, and
    become free when unpinned. `arriving` blocks are being written. The owner hears of each victim.
    """

    __slots__ = ("arriving", "evicted_pinned", "kept", "num_pinned", "owner", "pins")

    def __init__(self, num_blocks: int, order: EvictionOrder, hash_of: HashOf, owner: Owner) -> None:
        super().__init__(num_blocks, order, hash_of)
        self.owner = owner
        self.pins: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.num_pinned = 0
        self.evicted_pinned: set[int] = set()
        self.arriving: set[int] = set()

    @property
    def num_in_transit(self) -> int:
        """Blocks of no table that are neither free nor can be evicted, until a transfer lands."""
        return self.num_pinned + len(self.evicted_pinned) + len(self.arriving)

    def in_transit(self) -> list[int]:
        holder = self.index.holder
        pinned = [block for block in self.pins if (node := holder[block]) is not None and node.parked]
        return [*pinned, *sorted(self.evicted_pinned), *sorted(self.arriving)]

    def pin(self, node: Node) -> None:
        block = node.block
        self.pins[block] = self.pins.get(block, 0) + 1
        if node.parked and self.pins[block] == 1:
            self.num_parked -= 1
            self.num_pinned += 1

    def keep(self, node: Node) -> None:
        """One transfer more needs what the node's block stores to stay findable."""
        self.pin(node)
        self.kept[node.block] = self.kept.get(node.block, 0) + 1

    def unkeep(self, block: int) -> None:
        self.kept[block] -= 1
        if not self.kept[block]:
            del self.kept[block]
        self.unpin(block)

    def unpin(self, block: int) -> None:
        self.pins[block] -= 1
        if self.pins[block]:
            return
        del self.pins[block]
        node = self.index.holder[block]
        if block in self.evicted_pinned:
            self.evicted_pinned.remove(block)
            self.free.append(block)
        elif node is not None and node.parked:
            self.num_pinned -= 1
            self.num_parked += 1

    def take_arriving(self, count: int) -> list[int]:
        """Take `count` free blocks, which must be there, for a transfer to write."""
        blocks = self.take(count)
        self.arriving.update(blocks)
        return blocks

    def arrived(self, nodes: Sequence[Node], blocks: Sequence[int]) -> None:
        """A transfer has written what `nodes` store to `blocks`: parked now, or free where it was there already."""
        parked = list[Node]()
        for node, block in zip(nodes, blocks, strict=True):
            self.arriving.remove(block)
            if node.block == HOLE:
                self.index.fill(node, block)
                node.parked = True
                parked.append(node)
            else:
                self.free.append(block)
        self.num_parked += len(parked)
        self.order.park(parked[::-1])

    def hold(self, nodes: Sequence[Node]) -> int:
        pinned = sum(node.parked and node.block in self.pins for node in nodes) if self.pins else 0
        self.num_pinned -= pinned
        self.num_parked += pinned
        return super().hold(nodes)

    def put(self, blocks: list[int]) -> int:
        count = super().put(blocks)
        if self.pins:
            holder = self.index.holder
            pinned = sum((node := holder[block]) is not None and node.parked and block in self.pins for block in blocks)
            self.num_pinned += pinned
            self.num_parked -= pinned
        return count

    def evict(self, count: int) -> None:
        aside, freed = list[Node](), list[int]()
        while len(freed) < count:
            node = self.order.victim()
            if node.block in self.kept:
                aside.append(node)
                continue
            self.owner.evicting(node)
            self.evictions += 1
            (block,) = self.index.drop([node])
            if block in self.pins:
                self.num_pinned -= 1
                self.evicted_pinned.add(block)
            else:
                self.num_parked -= 1
                freed.append(block)
        self.free[:0] = freed[::-1]
        self.order.park(aside)

    def parked(self) -> list[int]:
        return [block for block in super().parked() if block not in self.pins]

    def check(self, tables: Iterable[list[int]]) -> None:
        parked = self.parked()
        assert len(parked) == self.num_parked, "parked blocks are miscounted"
        assert len(super().parked()) == self.num_parked + self.num_pinned, "pins are miscounted"
        self.index.check()
        self._check(tables, [*parked, *self.in_transit()])

    def _settle(self, node: Node, block: int) -> None:
        replaced = node.block if node.parked else HOLE
        if replaced in self.pins:
            self.num_pinned -= 1
            self.num_parked += 1
        super()._settle(node, block)
        if replaced in self.pins:
            self.free.pop()  # it was put there just now
            self.evicted_pinned.add(replaced)
