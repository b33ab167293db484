"""A memory that really stores tokens, tier by tier, and performs what a policy orders."""

from collections.abc import Hashable, Iterable

from testbed.contract.clauses import require
from testbed.core.slots import DEVICE, Copy, Extent, Move, Ops
from testbed.memory.policy import PoolSpec

Slots = dict[int, Hashable]


class TokenMemory:
    """The slots of the pool, tier by tier; performs a policy's ops as an engine would."""

    def __init__(self, pool: PoolSpec) -> None:
        self.num_slots = {DEVICE: pool.num_slots, **{tier.name: tier.num_slots for tier in pool.tiers}}
        self.tiers: dict[str, Slots] = {name: {} for name in self.num_slots}
        self.in_transit: dict[int, tuple[Move, Slots, Slots]] = {}

    @property
    def device(self) -> Slots:
        return self.tiers[DEVICE]

    def perform(self, ops: Ops) -> None:
        """Carry out all moves between tiers and all copies; each reads its sources before it overwrites anything."""
        for source, target, copies in (*ops.moves, Move(DEVICE, DEVICE, ops.copies)):
            self._check_inside(source, [Extent(copy.src, copy.length) for copy in copies])
            self._check_inside(target, [Extent(copy.dst, copy.length) for copy in copies])
            self._copy(self.tiers[source], self.tiers[target], copies)
        for move_id, move in ops.background:
            require(12, move_id not in self.in_transit, f"two transfers in the background have the id {move_id}")
            self._check_inside(move.source, [Extent(copy.src, copy.length) for copy in move.copies])
            self._check_inside(move.target, [Extent(copy.dst, copy.length) for copy in move.copies])
            self.in_transit[move_id] = (move, *self._ends(move))

    def land(self, move_id: int) -> None:
        """The transfer has ended, and no other call has written to what it reads or writes meanwhile."""
        move, read, written = self.in_transit.pop(move_id)
        name = f"transfer {move_id} from {move.source} to {move.target}"
        now_read, now_written = self._ends(move)
        require(12, now_read == read, f"what {name} reads was written before it has landed")
        require(12, now_written == written, f"{name}: its target was written by another call before it has landed")
        self._copy(self.tiers[move.source], self.tiers[move.target], move.copies)

    def _ends(self, move: Move) -> tuple[Slots, Slots]:
        source, target = self.tiers[move.source], self.tiers[move.target]
        pairs = [(src + i, dst + i) for src, dst, length in move.copies for i in range(length)]
        return {src: source.get(src) for src, _ in pairs}, {dst: target.get(dst) for _, dst in pairs}

    def write(self, slots: Iterable[int], tokens: Iterable[Hashable]) -> None:
        self.device.update(zip(slots, tokens, strict=True))

    def _check_inside(self, tier: str, extents: list[Extent]) -> None:
        given = self.num_slots.get(tier, 0)
        require(4, tier in self.num_slots, f"ops name the tier {tier}; there are {', '.join(self.num_slots)}")
        for start, length in extents:
            inside = start + length <= given
            require(4, inside, f"ops reach slots {start} to {start + length} of the {tier}; {given} were given")

    def _copy(self, source: Slots, target: Slots, copies: Iterable[Copy]) -> None:
        pairs = [(dst + i, source.get(src + i)) for src, dst, length in copies for i in range(length)]
        target.update(pairs)
