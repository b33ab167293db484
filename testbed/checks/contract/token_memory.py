"""A memory that stores tokens, tier by tier; the tokens of prompts, and what must be found of them
(clause 8).
"""

from collections.abc import Container, Hashable, Iterable
from itertools import count, islice

from testbed.checks.contract.clauses import require, slots_of
from testbed.checks.contract.histories import Admit
from testbed.core.slots import DEVICE, Extent, Move, Ops
from testbed.memory.policy import PoolSpec

Contents = list[Hashable]
Tables = dict[int, list[int]]
PREFIX = 2  # the story of a registered prefix; 0 and 1 are those of requests


class TokenMemory:
    """The slots of the pool, tier by tier; performs a policy's ops as an engine would."""

    def __init__(self, pool: PoolSpec) -> None:
        self.num_slots = {
            DEVICE: pool.num_slots,
            **{tier.name: tier.num_slots for tier in pool.tiers},
        }
        self.tiers: dict[str, dict[int, Hashable]] = {name: {} for name in self.num_slots}
        self.in_transit: dict[int, tuple[Move, Contents, Contents]] = {}

    def perform(self, ops: Ops) -> None:
        """Carry out all moves between tiers and all copies; each reads its sources before it
        overwrites anything.
        """
        for move in (*ops.moves, Move(DEVICE, DEVICE, ops.copies)):
            self._carry_out(move, self._ends(move)[0])
        for move_id, move in ops.background:
            require(
                12,
                move_id not in self.in_transit,
                f"two transfers in the background have the id {move_id}",
            )
            self.in_transit[move_id] = (move, *self._ends(move))

    def land(self, move_id: int) -> None:
        """The transfer has ended, and no other call has written to what it reads or writes
        meanwhile.
        """
        move, read, written = self.in_transit.pop(move_id)
        name = f"transfer {move_id} from {move.source} to {move.target}"
        now_read, now_written = self._ends(move)
        require(12, now_read == read, f"what {name} reads was written before it has landed")
        require(
            12,
            now_written == written,
            f"{name}: its target was written by another call before it has landed",
        )
        self._carry_out(move, read)

    def read(self, slots: Iterable[int], tier: str = DEVICE) -> Contents:
        return [self.tiers[tier].get(slot) for slot in slots]

    def write(self, slots: Iterable[int], contents: Iterable[Hashable], tier: str = DEVICE) -> None:
        self.tiers[tier].update(zip(slots, contents, strict=True))

    def _carry_out(self, move: Move, contents: Contents) -> None:
        self.write(
            slots_of(Extent(copy.dst, copy.length) for copy in move.copies), contents, move.target
        )

    def _ends(self, move: Move) -> tuple[Contents, Contents]:
        """The slots that a move reads, and those that it overwrites."""
        read = self._inside(move.source, [Extent(copy.src, copy.length) for copy in move.copies])
        return read, self._inside(
            move.target, [Extent(copy.dst, copy.length) for copy in move.copies]
        )

    def _inside(self, tier: str, extents: list[Extent]) -> Contents:
        require(
            4,
            tier in self.num_slots,
            f"ops name the tier {tier}; there are {', '.join(self.num_slots)}",
        )
        num_slots = self.num_slots[tier]
        for start, length in extents:
            inside = start + length <= num_slots
            require(
                4,
                inside,
                f"ops reach slots {start} to {start + length} of the {tier}; {num_slots} were "
                "given",
            )
        return self.read(slots_of(extents), tier)


class Stories:
    """The tokens of every prompt, and which blocks of stories must be findable by now.

    The tokens of a story are the same in every prompt that shares them; all others occur once.
    `tables` has the slots of every sequence on the device. A block of a story is certainly findable
    while one of them has the block that was published when no other had an equal one.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._announced: dict[int, tuple[int, int]] = {}
        self._declared: dict[int, int] = {}
        self._findable: dict[tuple[int, int], int] = {}
        self.fresh = count()

    def prompt(
        self, seq_ids: list[int], call: Admit, prompt_len: int, prefix: int
    ) -> tuple[int, ...]:
        """The prompt of these new sequences, which begins with a registered prefix of `prefix`
        tokens, if any.
        """
        story, shared = (PREFIX, prefix) if prefix else (call.story, min(call.shared, prompt_len))
        for seq_id in seq_ids:
            self._announced[seq_id] = story, 0 if prefix else shared
        return (*story_tokens(story, shared), *islice(self.fresh, prompt_len - shared))

    def entered(self, seq_id: int, num_cached: int) -> None:
        self._declared[seq_id] = num_cached

    def publish(self, seq_id: int, num_tokens: int, tables: Tables) -> None:
        """The first num_tokens tokens are declared: its new blocks become findable unless equal
        ones may be.
        """
        size, before = self.block_size, self._declared[seq_id]
        self._declared[seq_id] = max(before, num_tokens)
        story, shared = self._announced[seq_id]
        for i in range(before // size, min(shared, num_tokens) // size):
            slot = tables[seq_id][i * size]
            if all(other[i * size] == slot for other in self._holders(story, i, size, tables)):
                self._findable[story, i] = slot

    def certain_hit(
        self, seq_id: int, prompt_len: int, tables: Tables, cached: Container[object] = ()
    ) -> int:
        """Tokens of a prompt that must be found now, its last one aside.

        cached: what blocks outside the tables store, which can be found too.
        """
        size, num_blocks = self.block_size, 0
        story, shared = self._announced[seq_id]
        while num_blocks < min(shared, prompt_len - 1) // size:
            slot = self._findable.get((story, num_blocks))
            holders = self._holders(story, num_blocks, size, tables)
            start = num_blocks * size
            is_held = any(table[start] == slot for table in holders)
            if not is_held and tuple(story_tokens(story, size, start)) not in cached:
                break
            num_blocks += 1
        return num_blocks * size

    def _holders(self, story: int, i: int, size: int, tables: Tables) -> list[list[int]]:
        return [
            table
            for seq_id, table in tables.items()
            if self._announced[seq_id][0] == story
            and min(self._announced[seq_id][1], self._declared[seq_id]) >= (i + 1) * size
        ]


def story_tokens(story: int, num_tokens: int, start: int = 0) -> list[int]:
    """The tokens of a story from position `start` on."""
    positions = range(start, start + num_tokens)
    return [-1 - position * (PREFIX + 1) - story for position in positions]
