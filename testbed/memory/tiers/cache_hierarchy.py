"""The cache hierarchy: what the device and each tier below it store, and the transfers between
them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.slots import DEVICE, Copy, Move, Transfer
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node
from testbed.memory.tiers.lower_tier import LowerTier, Use
from testbed.memory.tiers.pinned_pool import PinnedPool

ON_DEVICE = 0  # the place of the device, above the tiers 1, 2, ...
ON_THE_WAY = -1  # to the device
Places = dict[int, list[Node]]


@dataclass(slots=True)
class InTransit:
    """A transfer of the nodes' content from blocks of one place to those of another; `kept`: blocks
    of the device. `uses`: for what a tier stores them.
    """

    source: int
    target: int
    nodes: list[Node]
    uses: list[Use]
    read: list[int]
    written: list[int]
    kept: list[int]


class CacheHierarchy:
    """The device's pool, and the tiers below it, from the fastest on: the `places` of content.

    A transfer lasts from its `begin_...` until `landed`; what it reads or writes is pinned
    meanwhile. `loading` are the nodes on their way to the device. With `exclusive` tiers a block
    leaves its tier when it has been loaded. `moved` counts blocks since the beginning.
    """

    def __init__(
        self, device: PinnedPool, tiers: list[LowerTier], block_size: int, exclusive: bool
    ) -> None:
        self.device = device
        self.tiers = tiers
        self.places: list[PinnedPool | LowerTier] = [device, *tiers]
        self.loading: set[Node] = set()
        self.in_transit: dict[int, InTransit] = {}
        self.written: list[tuple[int, int]] = []
        self.moved = {"loaded_blocks": 0, "stored_blocks": 0, "written_blocks": 0}
        self._block_size = block_size
        self._exclusive = exclusive
        self._num_transfers = 0

    def look_up(self, on_device: list[Node], rest: Sequence[Content]) -> list[tuple[int, Node]]:
        """The places of the contents after the nodes on the device, up to the first that is
        nowhere; changes nothing.
        """
        index, behind = self.device.index, []
        node = on_device[-1] if on_device else index.root
        for content in rest:
            node = index.child_or_new(node, content)
            place = self._place_of(node)
            if place is None:
                break
            behind.append((place, node))
        return behind

    def can_store(self, target: int, node: Node) -> bool:
        """True if the place above tier `target` has the node's content, and the tier has not."""
        above = node.block != TOMBSTONE if target == 1 else self.tiers[target - 2].has(node)
        return above and node not in self.tiers[target - 1]

    def pin_for_loads(self, below: Places, stay: list[Node], use: Use) -> list[InTransit]:
        """Loads of these nodes: one from each place, in the prompt's order, whose blocks are
        pinned; `stay` is kept.
        """
        loads: list[InTransit] = []
        for place, nodes in below.items():
            tier = self.tiers[place - 1]
            tier.touch(nodes, use)
            for node in nodes:
                self.device.index.keep(node)
            kept = self.device.pin(stay)
            self.device.kept.add(kept)
            loads.append(
                InTransit(
                    source=place,
                    target=ON_DEVICE,
                    nodes=nodes,
                    uses=[],
                    read=tier.pin(nodes),
                    written=[],
                    kept=kept,
                )
            )
        return loads

    def begin_load(self, load: InTransit) -> Transfer:
        """Load into as many free blocks of the device, which must be there."""
        load.written = self.device.take(len(load.nodes))
        self.device.arriving.update(load.written)
        self.loading.update(load.nodes)
        self.moved["loaded_blocks"] += len(load.nodes)
        return self._begin(load)

    def begin_store(self, target: int, candidates: Mapping[Node, Use]) -> Transfer | None:
        """Store nodes in tier `target` from the place above it; None if there is none to store,
        or no block.
        """
        chosen = {node: use for node, use in candidates.items() if self.can_store(target, node)}
        taken = self.tiers[target - 1].take(chosen) if chosen else {}
        if not taken:
            return None
        self.moved["stored_blocks"] += len(taken)
        nodes, read = list(taken), self.places[target - 1].pin(taken)
        return self._begin(
            InTransit(
                source=target - 1,
                target=target,
                nodes=nodes,
                uses=[candidates[node] for node in nodes],
                read=read,
                written=list(taken.values()),
                kept=[],
            )
        )

    def landed(self, move_id: int) -> InTransit:
        """This transfer, whose content can now be found at its target; what it read is unpinned."""
        transfer = self.in_transit.pop(move_id)
        nodes = transfer.nodes
        self.places[transfer.target].arrived(nodes, transfer.written)
        self.places[transfer.source].unpin(transfer.read)
        if transfer.target == ON_DEVICE:
            self.loading.difference_update(nodes)
            self.device.kept.drop(transfer.kept)
            self.device.unpin(transfer.kept)
            if self._exclusive:
                self.tiers[transfer.source - 1].drop_unpinned(nodes)
        return transfer

    def share(self, shared: Mapping[str, LowerTier]) -> None:
        """Use these tiers, by name, in place of those that it was made with; nothing is stored
        yet.
        """
        self.tiers = [shared.get(tier.name, tier) for tier in self.tiers]
        self.places = [self.device, *self.tiers]

    def transfers_of(self, name: str) -> tuple[list[int], list[int]]:
        """The blocks of a tier that transfers read, and those that they write."""
        place = next(i for i, tier in enumerate(self.tiers, 1) if tier.name == name)
        moving = self.in_transit.values()
        read = [block for move in moving if move.source == place for block in move.read]
        written = [block for move in moving if move.target == place for block in move.written]
        return read, written

    def give_up(self) -> None:
        """No transfer will land: the engine, and with it the device, has failed. The tiers below
        may stay.
        """
        for transfer in self.in_transit.values():
            if transfer.source != ON_DEVICE:
                self.tiers[transfer.source - 1].unpin(transfer.read)
            if transfer.target != ON_DEVICE:
                self.tiers[transfer.target - 1].give_up(transfer.nodes)
        self.in_transit.clear()

    def write_back(self, node: Node, use: Use) -> bool:
        """Write a block that is about to be evicted to the first tier, in the next iteration;
        whether it stores it.
        """
        tier = self.tiers[0]
        taken = {} if node in tier else tier.take({node: use})
        if not taken:
            return False
        [target] = taken.values()
        tier.arrived([node], [target])
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

    def _place_of(self, node: Node) -> int | None:
        if node.block != TOMBSTONE:
            return ON_DEVICE
        if node in self.loading:
            return ON_THE_WAY
        for place, tier in enumerate(self.tiers, 1):
            if tier.has(node):
                return place
        return None

    def _begin(self, transfer: InTransit) -> Transfer:
        self._num_transfers += 1
        self.in_transit[self._num_transfers] = transfer
        names = [DEVICE, *(tier.name for tier in self.tiers)]
        copies = runs_of(zip(transfer.read, transfer.written, strict=True), self._block_size)
        return Transfer(
            self._num_transfers, Move(names[transfer.source], names[transfer.target], copies)
        )


def runs_of(pairs: Iterable[tuple[int, int]], block_size: int) -> tuple[Copy, ...]:
    """Copies of blocks (source, target), in slots; adjacent ones whose targets are adjacent too are
    one copy.
    """
    runs: list[Copy] = []
    for source, target in pairs:
        src, dst = source * block_size, target * block_size
        if runs and (runs[-1].src + runs[-1].length, runs[-1].dst + runs[-1].length) == (src, dst):
            runs[-1] = runs[-1]._replace(length=runs[-1].length + block_size)
        else:
            runs.append(Copy(src, dst, block_size))
    return tuple(runs)
