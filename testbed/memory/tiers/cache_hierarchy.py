"""The cache hierarchy: what the device and each tier below it store, and the transfers between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.core.slots import DEVICE, Copy, Move, Transfer
from testbed.memory.prefix_cache.prefix_index import HOLE, Content, Node
from testbed.memory.tiers.pools import LowerTier, PinnedPool

ON_DEVICE = -1  # the place of the device, above the tiers 0, 1, ...


@dataclass(slots=True)
class InTransit:
    """A transfer of the nodes' content from one place to another; `pinned`: device blocks that must stay meanwhile."""

    source: int
    target: int
    nodes: list[Node]
    blocks: list[int]
    pinned: list[int]


@dataclass(slots=True)
class Lookup:
    """Where a prompt's next blocks are: on the device, on the way to it, or in a tier below (place, node)."""

    on_device: list[Node]
    num_loading: int
    below: list[tuple[int, Node]]

    def __len__(self) -> int:
        return len(self.on_device) + self.num_loading + len(self.below)


class CacheHierarchy:
    """The device's pool, and the tiers 0, 1, ... below it, from the fastest on.

    A transfer lasts from its `begin_...` until `landed`; what it reads or writes is pinned meanwhile. `loading` are the
    nodes on their way to the device. With `exclusive` tiers a block leaves its tier when it has been loaded. `moved`
    counts blocks since the beginning.
    """

    def __init__(self, device: PinnedPool, tiers: list[LowerTier], block_size: int, exclusive: bool) -> None:
        self.device = device
        self.tiers = tiers
        self.loading: set[Node] = set()
        self.in_transit: dict[int, InTransit] = {}
        self.written: list[tuple[int, int]] = []
        self.moved = {"loaded_blocks": 0, "stored_blocks": 0, "written_blocks": 0}
        self._block_size = block_size
        self._exclusive = exclusive
        self._num_transfers = 0

    def look_up(self, found: list[Node], rest: Sequence[Content]) -> Lookup:
        """Where the contents after the found nodes are, up to the first that is nowhere; changes nothing."""
        index, behind = self.device.index, Lookup([], 0, [])
        node = found[-1] if found else index.root
        for content in rest:
            child = index.child(node, content)
            if child is None:
                break
            if child.block != HOLE:
                behind.on_device.append(child)
            elif child in self.loading:
                behind.num_loading += 1
            else:
                place = next((i for i, tier in enumerate(self.tiers) if child in tier.blocks), None)
                if place is None:
                    break
                behind.below.append((place, child))
            node = child
        return behind

    def can_store(self, target: int, node: Node) -> bool:
        """Whether the place above tier `target` has the node's content, and the tier has not."""
        above = node.block != HOLE if target == 0 else node in self.tiers[target - 1].blocks
        return above and node not in self.tiers[target]

    def pin_for_loads(self, below: list[tuple[int, Node]], stay: list[Node]) -> list[tuple[int, list[Node]]]:
        """Pin what loads of these nodes read: one for each place, in the prompt's order; each keeps `stay` findable."""
        places = dict.fromkeys(place for place, _ in below)
        chains = [(place, [node for at, node in below if at == place]) for place in places]
        for node in stay * len(chains):
            self.device.keep(node)
        for place, nodes in chains:
            self.tiers[place].touch(nodes)
            self.tiers[place].pin(nodes)
        return chains

    def begin_load(self, source: int, nodes: list[Node], stay: list[Node]) -> Transfer:
        """Load a chain that is pinned into as many free blocks of the device, which must be there."""
        tier = self.tiers[source]
        blocks = self.device.take(len(nodes))
        self.device.arriving.update(blocks)
        self.loading.update(nodes)
        self.moved["loaded_blocks"] += len(nodes)
        pairs = [(tier.blocks[node], block) for node, block in zip(nodes, blocks, strict=True)]
        return self._begin(InTransit(source, ON_DEVICE, nodes, blocks, [node.block for node in stay]), pairs)

    def begin_store(self, target: int, candidates: list[Node]) -> Transfer | None:
        """Store nodes in tier `target` from the place above it; None where there is none to store, or no block."""
        chosen = [node for node in candidates if self.can_store(target, node)]
        taken = [(node, block) for node in chosen if (block := self.tiers[target].take(node)) is not None]
        if not taken:
            return None
        nodes, blocks = [node for node, _ in taken], [block for _, block in taken]
        self.moved["stored_blocks"] += len(nodes)
        if target == 0:
            for node in nodes:
                self.device.pin(node)
            sources = [node.block for node in nodes]
        else:
            self.tiers[target - 1].pin(nodes)
            sources = [self.tiers[target - 1].blocks[node] for node in nodes]
        transfer = InTransit(target - 1, target, nodes, blocks, sources if target == 0 else [])
        return self._begin(transfer, list(zip(sources, blocks, strict=True)))

    def landed(self, move_id: int) -> InTransit:
        """This transfer, whose content can now be found at its target; what it read is unpinned."""
        transfer = self.in_transit.pop(move_id)
        if transfer.target == ON_DEVICE:
            self._loaded(transfer)
        else:
            self.tiers[transfer.target].arrived(transfer.nodes)
            for block in transfer.pinned:
                self.device.unpin(block)
            if transfer.source != ON_DEVICE:
                self.tiers[transfer.source].unpin(transfer.nodes)
        return transfer

    def write_back(self, node: Node) -> bool:
        """Write a block that is about to be evicted to the first tier, in the next iteration; whether it stores it."""
        tier = self.tiers[0]
        target = None if node in tier else tier.take(node)
        if target is None:
            return False
        tier.arrived([node])
        self.moved["written_blocks"] += 1
        self.written.append((node.block, target))
        return True

    def take_written(self) -> Move:
        """The move to the first tier of all blocks that were written back since the last call."""
        written, self.written = self.written, []
        return Move(DEVICE, self.tiers[0].name, runs_of(written, self._block_size))

    def check(self) -> None:
        for tier in self.tiers:
            tier.check()
        assert not self.written, "an evicted block was not written"
        on_way = [node for one in self.in_transit.values() if one.target == ON_DEVICE for node in one.nodes]
        assert len(on_way) == len(self.loading) == len(self.device.arriving), "loads are miscounted"

    def _begin(self, transfer: InTransit, pairs: list[tuple[int, int]]) -> Transfer:
        self._num_transfers += 1
        self.in_transit[self._num_transfers] = transfer
        source, target = self._name(transfer.source), self._name(transfer.target)
        return Transfer(self._num_transfers, Move(source, target, runs_of(pairs, self._block_size)))

    def _name(self, place: int) -> str:
        return DEVICE if place == ON_DEVICE else self.tiers[place].name

    def _loaded(self, transfer: InTransit) -> None:
        nodes, tier = transfer.nodes, self.tiers[transfer.source]
        self.device.arrived(nodes, transfer.blocks)
        self.loading.difference_update(nodes)
        for block in transfer.pinned:
            self.device.unkeep(block)
        tier.unpin(nodes)
        if self._exclusive:
            for node in nodes:
                if node not in tier.pins:
                    tier.drop(node)


def runs_of(pairs: Iterable[tuple[int, int]], block_size: int) -> tuple[Copy, ...]:
    """Copies of blocks (source, target), in slots; adjacent ones whose targets are adjacent too are one copy."""
    runs = list[Copy]()
    for source, target in pairs:
        src, dst = source * block_size, target * block_size
        if runs and (runs[-1].src + runs[-1].length, runs[-1].dst + runs[-1].length) == (src, dst):
            runs[-1] = runs[-1]._replace(length=runs[-1].length + block_size)
        else:
            runs.append(Copy(src, dst, block_size))
    return tuple(runs)
