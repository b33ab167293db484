"""Pools whose unreferenced blocks stay findable by their content until they are evicted."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.hash_chain import Content, hash_chain
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node, PrefixIndex
from testbed.memory.prefix_cache.strand_index import StrandIndex
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

    def missed(self, contents: Sequence[Content], found: Sequence[Node]) -> None:
        """A prompt has found the first of its contents: blocks are evicted for the others now."""
        if self.follows_misses is not None:
            last, rest = found[-1] if found else self.index.root, contents[len(found) :]
            self.follows_misses.missed(hash_chain(last.code, rest, self.index.hash_of))

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

    The queue has the blocks that were given back at once as lists, of which the last block goes
    first. A list may be the blocks of a strand of the index (strand_index.py).

    A published block keeps its content though another block has the same: node.block is the one
    that was published first, which is found, and `copies` holds the others in order. The end of the
    first makes the next one findable.
    """

    __slots__ = ("copies", "num_queued", "queue", "release", "strands")

    def __init__(self, num_blocks: int, release: Release) -> None:
        super().__init__(num_blocks, Lru())
        self.index = self.strands = StrandIndex(num_blocks)
        self.release = release
        self.queue: deque[list[int]] = deque()
        self.num_queued = 0
        self.copies: dict[Node, list[int]] = {}

    def available(self) -> int:
        return len(self.free) + self.num_queued

    def counts(self) -> tuple[int, int, int]:
        num_cached = self.num_unreferenced
        return len(self.free) + self.num_queued - num_cached, num_cached, 0

    def hold(self, nodes: Sequence[Node]) -> int:
        if not nodes:
            return 0
        self._unqueue([node.block for node in nodes if node.evictable])
        return super().hold(nodes)

    def _unqueue(self, blocks: list[int]) -> None:
        """These blocks leave the queue, at once those that lie in it one behind another."""
        start, num_blocks = 0, len(blocks)
        self.num_queued -= num_blocks
        while start < num_blocks:
            queued = self.strands.lists[blocks[start]]
            first = queued.index(blocks[start])
            end, most = start + 1, min(num_blocks, start + len(queued) - first)
            while end < most and queued[first + end - start] == blocks[end]:
                end += 1
            del queued[first : first + end - start]
            start = end

    def unpublish(self, blocks: Iterable[int]) -> None:
        own = [*blocks]
        for strand in filter(None, [*map(self.strands.by_end.get, own)]):
            self.strands.expand(strand)
        for block in own:
            if self.ref_count(block) == 1 and self.index.holder[block] is not None:
                self._drop_content(block)

    def evict(self, count: int) -> None:
        """Free the first `count` blocks of the queue, which must be there."""
        queue, by_end, left = self.queue, self.strands.by_end, count
        taken: list[int] = []
        self.were_cached = []
        while left:
            blocks = queue[0]
            first = blocks[: -left - 1 : -1]  # the last ones of the list
            num = len(first)
            strand = by_end.get(first[0]) if num else None
            if strand is None:
                del blocks[len(blocks) - num :]
                self._drop_contents(first)
            else:
                self.strands.shorten(strand, num)  # whose blocks these are
                self.were_cached += [True] * num
            taken += first
            left -= num
            if not blocks:
                queue.popleft()
        num_cached = sum(self.were_cached)
        self.num_queued -= count
        self.num_unreferenced -= num_cached
        self.evictions += num_cached
        self.free[:0] = reversed(taken)  # behind those that were free before

    def evictable(self) -> list[int]:
        by_end, holder, cached = self.strands.by_end, self.index.holder, list[int]()
        for blocks in self.queue:
            if blocks and blocks[-1] in by_end:
                cached += blocks
            else:
                cached += [block for block in blocks if holder[block] is not None]
        return sorted(cached)

    def _unheld(self, blocks: list[int]) -> None:
        by_end, end = self.strands.by_end, len(blocks)
        while end:
            strand = by_end.get(blocks[end - 1])
            if strand is None:
                start = end - 1
                while start and blocks[start - 1] not in by_end:
                    start -= 1
                self._queue_nodes(blocks[start:end])
            else:
                start = max(end - len(strand.blocks), 0)
                if blocks[start:end] != strand.blocks:  # others hold its beginning
                    self.strands.expand(strand)
                    continue
                strand.evictable = True
                self.num_unreferenced += end - start
                self._queue(strand.blocks)
            end = start

    def _queue_nodes(self, blocks: list[int]) -> None:
        """Queue blocks without strands; or free those without content, if they come first."""
        holder, cached = self.index.holder, 0
        queued: list[int] = []
        for block in reversed(blocks):
            node = holder[block]
            if node is not None:
                cached += 1
                if node.block == block:
                    node.evictable = True
            elif self.release.uncached_first:
                self.free.append(block)
                continue
            queued.append(block)
        self.num_unreferenced += cached
        queued.reverse()
        self.strands.lists.update(dict.fromkeys(queued, queued))
        self._queue(queued)

    def _queue(self, blocks: list[int]) -> None:
        self.num_queued += len(blocks)
        self.queue.append(blocks)
        if len(self.queue) > 2 * self.num_blocks:  # hits have emptied most of the lists
            self.queue = deque(filter(None, self.queue))

    def _drop_contents(self, blocks: list[int]) -> None:
        """These blocks leave the queue, and their contents go, if they have any."""
        nodes = [*map(self.index.holder.__getitem__, blocks)]
        self.were_cached += [node is not None for node in nodes]
        if self.copies:
            self.unpublish(blocks)
        else:
            self.index.drop(filter(None, nodes))

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
            node.evictable = node.block in self.strands.lists.get(node.block, ())
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
