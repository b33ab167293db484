"""One contiguous reservation per sequence (section 3.1): Orca's memory. The rules that size a
reservation are in reservations.py.
"""

from abc import abstractmethod
from bisect import bisect_right
from functools import cache
from typing import NamedTuple

from testbed.core.errors import check_least
from testbed.core.sequence import Batch, BatchIndex, Sequence
from testbed.core.slots import (
    GRANTED,
    Answer,
    Answers,
    Copy,
    Extent,
    Fixed,
    Footprint,
    Keep,
    NonSequenceSlots,
    Ops,
    Refusal,
    Usage,
    record,
)
from testbed.core.units import PositiveTokens
from testbed.memory.contiguous.buddy import BuddyAllocator
from testbed.memory.layouts import ExtentLayout
from testbed.memory.leases import LeasingPolicy
from testbed.memory.policy import PoolSpec


class Reservation(NamedTuple):
    """A buddy range of 2^order blocks that begins at `block`, of which `slots` slots were
    requested.
    """

    block: int
    order: int
    slots: int


class FullAt(BatchIndex):
    """The steps at which the reservations of a batch are full."""

    def __init__(self, batch: Batch, reservations: dict[int, Reservation]) -> None:
        self.batch = batch
        self.reservations = reservations
        self._full_at: dict[int, int] = {}

    def added(self, seq: Sequence) -> None:
        self._full_at[seq.seq_id] = self.reservations[seq.seq_id].slots - seq.slots_offset

    def removed(self, seq: Sequence) -> None:
        del self._full_at[seq.seq_id]

    def steps(self) -> int | None:
        """Steps until a member's reservation is full; None for an empty batch."""
        return min(self._full_at.values()) - self.batch.extended if self._full_at else None


class Contiguous(LeasingPolicy):
    """A buddy allocator of blocks, one reservation a sequence. LATER: no free range is large
    enough; NEVER: none is.
    """

    def __init__(self, pool: PoolSpec, block_size: PositiveTokens = 16) -> None:
        super().__init__()
        check_least(1, block_size=block_size)
        self.block_size = block_size
        self.max_len = pool.max_len
        self._buddy = BuddyAllocator(pool.num_slots // block_size)
        self._reservations: dict[int, Reservation] = {}
        self._live = 0
        self._held = 0
        self._longest = cache(self._max_seq_len_of)

    @abstractmethod
    def reservation(self, seq: Sequence) -> int:
        """Slots to reserve for a sequence."""

    @abstractmethod
    def reservation_for(self, prompt_len: int, output_len: int) -> int:
        """Slots that a sequence with such an output would reserve; no fewer for a longer one."""

    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        slots = max(self.reservation(seqs[0]), num_tokens)
        order = self._order(slots)
        if len(seqs) > self._buddy.num_units >> order:
            return Refusal.NEVER
        blocks = self._allocate(len(seqs), order)
        if not blocks:
            return Refusal.LATER
        for seq, block in zip(seqs, blocks, strict=True):
            self._reservations[seq.seq_id] = record(Reservation, (block, order, slots))
        self._live += num_tokens * len(seqs)
        self._held += slots * len(seqs)
        return [GRANTED] * len(seqs)

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        index: FullAt = batch.indexes.get(self) or batch.index(self, self._index)
        steps = index.steps()
        if steps is not None and steps < num_tokens:
            return Refusal.NEVER
        self._live += num_tokens * len(batch.sequences)
        return GRANTED

    def _give_back(self, seq: Sequence, keep: Keep) -> None:
        held = self._reservations.pop(seq.seq_id)
        self._live -= seq.num_slots
        self._held -= held.slots
        self._buddy.free(held.block, held.order)

    def copy_prompt(self, parent: Sequence, child: Sequence) -> Ops:
        """Copy the whole range, also slots without tokens, as the artifact's
        BuddyBlockSpaceManager.fork does.
        """
        source, target = self._reservations[parent.seq_id], self._reservations[child.seq_id]
        size = self.block_size
        places = source.block * size, target.block * size, size << source.order
        return record(Ops, ((record(Copy, places),), (), (), ()))

    def table(self, seq: Sequence) -> list[Extent]:
        held = self._reservations[seq.seq_id]
        return [Extent(held.block * self.block_size, held.slots)]

    def usage(self) -> Usage:
        size, buddy = self.block_size, self._buddy
        free = buddy.num_free * size
        total = buddy.num_units * size
        return record(
            Usage,
            (
                total,
                self._live,
                self._held,
                total - free,
                0,
                free,
                buddy.largest_free() * size,
                0,
                0,
            ),
        )

    def guaranteed_steps(self, batch: Batch) -> int:
        index: FullAt = batch.indexes.get(self) or batch.index(self, self._index)
        return index.steps() or 0

    def footprint(self, seq: Sequence) -> Footprint:
        return record(Fixed, (self._reservations[seq.seq_id].slots,))

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        return self._longest(prompt_len, num_seqs)

    def layout(self) -> ExtentLayout:
        return ExtentLayout(self.block_size)

    def non_sequence_slots(self) -> NonSequenceSlots:
        size, held = self.block_size, self._reservations.values()
        ends = ((r.block * size + r.slots, (size << r.order) - r.slots) for r in held)
        return NonSequenceSlots(
            rounding=tuple(Extent(end, length) for end, length in ends if length)
        )

    def _max_seq_len_of(self, prompt_len: int, num_seqs: int) -> int:
        """Bisect the lengths: reservations do not shrink as outputs grow. The longest, which mostly
        fits, is tried first.
        """
        units = self._buddy.num_units

        def is_too_long(output_len: int) -> bool:
            return num_seqs > units >> self._order(self.reservation_for(prompt_len, output_len))

        outputs = range(1, max(self.max_len - prompt_len, 1) + 1)
        fitting = (
            bisect_right(outputs, False, key=is_too_long)
            if is_too_long(outputs[-1])
            else len(outputs)
        )
        return prompt_len + outputs[fitting - 1] if fitting else 0

    def _allocate(self, count: int, order: int) -> list[int]:
        """First blocks of `count` ranges of 2^order blocks; an empty list if not all fit."""
        blocks: list[int] = []
        while len(blocks) < count:
            block = self._buddy.allocate(order)
            if block is None:
                for taken in blocks:
                    self._buddy.free(taken, order)
                return []
            blocks.append(block)
        return blocks

    def _order(self, slots: int) -> int:
        return (-(-slots // self.block_size) - 1).bit_length()

    def _index(self, batch: Batch) -> FullAt:
        return FullAt(batch, self._reservations)
