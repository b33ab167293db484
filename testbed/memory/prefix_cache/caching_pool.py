"""Pools whose unreferenced blocks stay findable by their content until they are evicted."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar

from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node, PrefixIndex
from testbed.memory.protocols import FollowsMisses
from testbed.vllm.releases import Release


class CachingPool(BlockPool):
    """Every block is free, referenced, or evictable: unreferenced, but indexed."""

    __slots__ = ("evictions", "follows_misses", "index", "num_unreferenced", "order")

    has_other_blocks: ClassVar[bool] = True

    def __init__(self, num_blocks: int, order: EvictionOrder) -> None:
        super().__init__(num_blocks)
        self.index = PrefixIndex(num_blocks)
        self.order = order
        order.num_blocks = num_blocks
        self.follows_misses = order if isinstance(order, FollowsMisses) else None
        self.num_unreferenced = 0
        self.evictions = 0

    @property
    def num_evictable(self) -> int:
        return self.num_unreferenced

    def available(self) -> int:
        return len(self.free) + self.num_evictable

    def counts(self) -> tuple[int, int, int]:
        return len(self.free), self.num_evictable, len(self.in_transit())

    def hold(self, nodes: Sequence[Node]) -> int:
        """One sequence more holds these nodes' blocks: a prefix hit. Returns how many of them were
        evictable.
        """
        self.order.hit(nodes)
        revived = 0
        for node in nodes:
            node.hits += 1
            if node.evictable:
                node.evictable = False
                revived += 1
            else:
                self.sharers[node.block] = self.sharers.get(node.block, 1) + 1
                self.num_saved += 1
        self.num_unreferenced -= revived
        return revived

    def missed(self, contents: Sequence[Content], num_found: int) -> None:
        """A prompt has found num_found of its contents: blocks are evicted for the others now."""
        if self.follows_misses is not None:
            self.follows_misses.missed(self.index.chain(contents)[num_found:])

    def publish(self, node: Node, contents: Iterable[Content], blocks: Iterable[int]) -> Node:
        """Held `blocks` store `contents` behind `node`, in place of evictable equal ones; returns
        the last node.
        """
        return self.index.insert(node, contents, blocks, self._settle)

    def unpublish(self, blocks: Iterable[int]) -> None:
        """Makes the contents of these held blocks unfindable, as far as no other sequence holds
        them.
        """
        holder = self.index.holder
        own = [holder[block] for block in blocks if self.ref_count(block) == 1]
        self.index.drop(node for node in own if node is not None)

    def evict(self, count: int) -> None:
        self.free[:0] = self.index.drop(self.order.victims(count))[::-1]
        self.num_unreferenced -= count
        self.evictions += count
        self.were_cached = [True] * count

    def evictable(self) -> list[int]:
        return [node.block for node in filter(None, self.index.holder) if node.evictable]

    def _unheld(self, blocks: list[int]) -> None:
        backwards = blocks[::-1]
        nodes = list(map(self.index.holder.__getitem__, backwards))
        evictable = [node for node in nodes if node is not None]
        if evictable:
            for node in evictable:
                node.evictable = True
            self.num_unreferenced += len(evictable)
            self.order.add(evictable)
            backwards = [
                block for block, node in zip(backwards, nodes, strict=True) if node is None
            ]
        self.free.extend(backwards)

    def _settle(self, node: Node, block: int) -> None:
        """A held block stores what another one stores, or has stored, already."""
        if node.evictable:
            self.hold([node])
            self.free.append(node.block)
        elif node.block != TOMBSTONE:
            return
        self.index.fill(node, block)


class LastUsePool(CachingPool):
    """Unreferenced blocks form one queue, cached or not; the first is allocated, and its content is
    then not findable.

    A block that was never used comes before all of them. In a release that takes uncached blocks
    first, so does one that holds no full block of known content; else it waits for its turn like
    the cached ones.

    A published block keeps its content though another block has the same: node.block is the one
    that was published first, which is found, and `copies` holds the others in order. The end of the
    first makes the next one findable.
    """

    __slots__ = ("copies", "queue", "release")

    def __init__(self, num_blocks: int, release: Release) -> None:
        super().__init__(num_blocks, Lru())
        self.release = release
        self.queue: OrderedDict[int, None] = OrderedDict()
        self.copies: dict[Node, list[int]] = {}

    def available(self) -> int:
        return len(self.free) + len(self.queue)

    def counts(self) -> tuple[int, int, int]:
        num_cached = self.num_unreferenced
        return len(self.free) + len(self.queue) - num_cached, num_cached, 0

    def hold(self, nodes: Sequence[Node]) -> int:
        for node in nodes:
            if node.evictable:
                del self.queue[node.block]
        return super().hold(nodes) if nodes else 0

    def unpublish(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self.ref_count(block) == 1 and self.index.holder[block] is not None:
                self._drop_content(block)

    def evict(self, count: int) -> None:
        """Free the first `count` blocks of the queue, which must be there."""
        taken = [*islice(self.queue, count)]
        for block in taken:
            del self.queue[block]
        nodes = [*map(self.index.holder.__getitem__, taken)]
        cached = [*filter(None, nodes)]
        self.were_cached = [True] * count
        if len(cached) < count:
            self.were_cached = [node is not None for node in nodes]
        self.num_unreferenced -= len(cached)
        self.evictions += len(cached)
        if self.copies:
            self.unpublish(taken)
        else:
            self.index.drop(cached)
        self.free[:0] = reversed(taken)  # behind those that were free before

    def evictable(self) -> list[int]:
        return sorted(block for block in self.queue if self.index.holder[block] is not None)

    def _unheld(self, blocks: list[int]) -> None:
        holder, queue, num_cached = self.index.holder, self.queue, 0
        for block in reversed(blocks):
            node = holder[block]
            if node is not None:
                num_cached += 1
                if node.block == block:
                    node.evictable = True
            elif self.release.uncached_first:
                self.free.append(block)
                continue
            queue[block] = None
        self.num_unreferenced += num_cached

    def _drop_content(self, block: int) -> None:
        """This copy of a content goes; the next one, if any, is found in its place."""
        holder = self.index.holder
        node = holder[block]
        assert node is not None
        others = self.copies.get(node, [])
        if block in others:
            others.remove(block)
            holder[block] = None
        elif others:
            self.index.fill(node, others.pop(0))
            node.evictable = node.block in self.queue
        else:
            self.index.drop([node])
        if not others:
            self.copies.pop(node, None)

    def _settle(self, node: Node, block: int) -> None:
        if node.block == TOMBSTONE:
            self.index.fill(node, block)
        else:
            self.index.holder[block] = node
            self.copies.setdefault(node, []).append(block)
