"""A tier below the device: what it stores, and which of it transfers read and write."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias, TypeVar

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.prefix_cache.prefix_index import Key, Node

OnChange: TypeAlias = Callable[[], None]
Block = TypeVar("Block")  # its number, or the key of what it stores


class Pins(dict[Block, int]):
    """The number of transfers that need a block."""

    def add(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self[block] = self.get(block, 0) + 1

    def drop(self, blocks: Collection[Block]) -> list[Block]:
        """One transfer less needs these blocks; returns those that none needs any more."""
        for block in blocks:
            self[block] -= 1
        unpinned = [block for block in blocks if not self[block]]
        for block in unpinned:
            del self[block]
        return unpinned


class Use:
    """A request's use of the tiers: all blocks that it stores or finds have one rank in a tier, in
    however many chunks they are computed.
    """

    __slots__ = ("ranks",)

    def __init__(self) -> None:
        self.ranks: dict[str, int] = {}

    def renew(self) -> None:
        """The use counts as new in every tier from now on."""
        self.ranks.clear()


class LowerTier:
    """Blocks of block_size tokens by the keys of what they store. The blocks of the least recent
    `Use` are evicted first, and of these the later ones of a prompt, so that what stays can be
    found. One engine uses the tier, or several, each with its own nodes of the same keys.

    `arriving` blocks are being written and store nothing yet; `pins` counts the transfers that read
    a block. on_change: the callback, if there is one, for other content that can be found here than
    before.
    """

    def __init__(self, name: str, num_blocks: int, block_size: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks: dict[Key, int] = {}
        self.arriving: dict[Key, int] = {}
        self.pins = Pins[int]()
        self.on_change: OnChange | None = None
        self._free = list(range(num_blocks))[::-1]
        self._num_uses = 0
        self._ranks: dict[Key, tuple[int, int]] = {}  # the rank of the use, minus the depth
        self._queue: list[tuple[tuple[int, int], Key]] = []  # a heap; entries may be out of date

    def __contains__(self, node: Node) -> bool:
        """True if this tier stores the content of the node, or a transfer brings it."""
        key = node.key
        return key in self.blocks or key in self.arriving

    def has(self, node: Node) -> bool:
        """True if this tier stores the content of the node."""
        return node.key in self.blocks

    def take(self, uses: Mapping[Node, Use]) -> dict[Node, int]:
        """Blocks for the content of nodes that is not here, free or of evicted ones; none for some
        if all are pinned.
        """
        taken: dict[Node, int] = {}
        num_dropped = 0
        for node, use in uses.items():
            if not self._free:
                victim = self._victim()
                if victim is None:
                    continue
                self._drop(victim)
                num_dropped += 1
            key = node.key
            taken[node] = self.arriving[key] = self._free.pop()
            self._ranks[key] = (self._rank_of(use), -node.depth)
        if num_dropped:
            self._changed()
        return taken

    def slots(self) -> NonSequenceSlots:
        size = self.block_size
        cached, in_transit = (
            tuple(Extent(block * size, size) for block in blocks.values())
            for blocks in (self.blocks, self.arriving)
        )
        return NonSequenceSlots(cached=cached, in_transit=in_transit)

    def arrived(self, nodes: Sequence[Node], blocks: Sequence[int]) -> None:
        """The blocks that were taken for these nodes store their content now."""
        for node, block in zip(nodes, blocks, strict=True):
            key = node.key
            del self.arriving[key]
            self.blocks[key] = block
            heappush(self._queue, (self._ranks[key], key))
        self._changed()

    def give_up(self, nodes: Iterable[Node]) -> None:
        """Drops the blocks that a transfer was to bring."""
        for node in nodes:
            key = node.key
            self._free.append(self.arriving.pop(key))
            del self._ranks[key]
        self._changed()

    def touch(self, nodes: Iterable[Node], use: Use) -> None:
        """A prompt uses this content."""
        rank = self._rank_of(use)
        for node in nodes:
            key, place = node.key, (rank, -node.depth)
            if key in self.blocks:
                self._ranks[key] = place
                heappush(self._queue, (place, key))
            elif key in self.arriving:
                self._ranks[key] = place
        if len(self._queue) > 2 * len(self.blocks) + 64:
            self._queue = [(self._ranks[key], key) for key in self.blocks]
            heapify(self._queue)

    def pin(self, nodes: Iterable[Node]) -> list[int]:
        """A transfer reads the blocks of these nodes, and unpins them when it has landed."""
        blocks = [self.blocks[node.key] for node in nodes]
        self.pins.add(blocks)
        return blocks

    def unpin(self, blocks: Collection[int]) -> None:
        self.pins.drop(blocks)

    def drop_unpinned(self, nodes: Iterable[Node]) -> None:
        """Forget the content of these nodes, which is here, but for what a transfer reads."""
        unpinned = [node.key for node in nodes if self.blocks[node.key] not in self.pins]
        for key in unpinned:
            self._drop(key)
        if unpinned:
            self._changed()

    def check(self) -> None:
        """Raise AssertionError if blocks were lost, or pins count what is not here."""
        used = [*self.blocks.values(), *self.arriving.values()]
        assert sorted(used + self._free) == list(range(self.num_blocks)), (
            f"blocks of the {self.name} were lost"
        )
        assert self.pins.keys() <= set(self.blocks.values()), (
            f"the {self.name} pins what it does not have"
        )
        current = {(self._ranks[key], key) for key in self.blocks}
        assert current <= set(self._queue), f"blocks of the {self.name} have no place in its order"

    def _rank_of(self, use: Use) -> int:
        if self.name not in use.ranks:
            self._num_uses += 1
            use.ranks[self.name] = self._num_uses
        return use.ranks[self.name]

    def _victim(self) -> Key | None:
        """The first key of the order whose block no transfer reads."""
        pinned: list[tuple[tuple[int, int], Key]] = []
        victim = None
        while self._queue and victim is None:
            entry = heappop(self._queue)
            rank, key = entry
            if key not in self.blocks or self._ranks[key] != rank:
                continue
            if self.blocks[key] in self.pins:
                pinned.append(entry)
            else:
                victim = key
        for entry in pinned:
            heappush(self._queue, entry)
        return victim

    def _drop(self, key: Key) -> None:
        """The caller says that the content has changed."""
        del self._ranks[key]
        self._free.append(self.blocks.pop(key))

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
