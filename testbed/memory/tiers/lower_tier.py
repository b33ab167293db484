"""A tier below the device: what it stores, and which of it transfers read and write."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.prefix_cache.prefix_index import Key, Node

OnChange: TypeAlias = Callable[[], None]


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


class LowerTier:
    """Blocks of block_size tokens by the keys of what they store, the least recently used first to
    be evicted. One engine uses the tier, or several, each with its own nodes of the same keys.

    `arriving` blocks are being written and store nothing yet; `pins` counts the transfers that read
    a block. on_change: who hears, if anybody does, that other content can be found here than
    before.
    """

    def __init__(self, name: str, num_blocks: int, block_size: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.block_size = block_size
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

    def slots(self) -> NonSequenceSlots:
        size = self.block_size
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
