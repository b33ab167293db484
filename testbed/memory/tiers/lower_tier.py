"""The blocks of a tier below the device, by the content that they store."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.prefix_cache.prefix_index import Node, PrefixIndex


class LowerTier:
    """Blocks by node, the least recently used first to be evicted.

    `arriving` blocks are being written and store nothing yet; `pins` counts the transfers that read a node's block.
    Every node with a block here is kept in the device's `index`, in which all tiers are looked up.
    """

    def __init__(self, name: str, num_blocks: int, index: PrefixIndex) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.blocks: OrderedDict[Node, int] = OrderedDict()
        self.arriving: dict[Node, int] = {}
        self.pins: dict[Node, int] = {}
        self._free = list(range(num_blocks))[::-1]
        self._index = index

    def __contains__(self, node: Node) -> bool:
        """Whether this tier stores the content of the node, or a transfer brings it."""
        return node in self.blocks or node in self.arriving

    def take(self, node: Node) -> int | None:
        """A block for the content of a node that is not here, free or of the evicted one; None where all are pinned."""
        if not self._free:
            victim = next((one for one in self.blocks if one not in self.pins), None)
            if victim is None:
                return None
            self.drop(victim)
        self._index.keep(node)
        block = self.arriving[node] = self._free.pop()
        return block

    def slots(self, size: int) -> NonSequenceSlots:
        found = [tuple(Extent(b * size, size) for b in held.values()) for held in (self.blocks, self.arriving)]
        return NonSequenceSlots(cached=found[0], in_transit=found[1])

    def arrived(self, nodes: Sequence[Node]) -> None:
        """The blocks that were taken for these nodes, from the first on in a prompt, store their content now."""
        for node in reversed(nodes):
            self.blocks[node] = self.arriving.pop(node)

    def touch(self, nodes: Sequence[Node]) -> None:
        """A prompt uses this content; the end of a prompt is evicted before its beginning."""
        for node in reversed(nodes):
            if node in self.blocks:
                self.blocks.move_to_end(node)

    def pin(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.pins[node] = self.pins.get(node, 0) + 1

    def unpin(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.pins[node] -= 1
            if not self.pins[node]:
                del self.pins[node]

    def drop(self, node: Node) -> None:
        """Forget the content of a node that is here and not pinned."""
        self._free.append(self.blocks.pop(node))
        self._index.dereference(node)

    def check(self) -> None:
        """Raise AssertionError where blocks were lost, or pins count what is not here."""
        used = [*self.blocks.values(), *self.arriving.values()]
        assert sorted(used + self._free) == list(range(self.num_blocks)), f"blocks of the {self.name} were lost"
        assert self.pins.keys() <= self.blocks.keys(), f"the {self.name} pins what it does not have"
