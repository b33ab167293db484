"""One contiguous reservation per sequence (section 3.1): Orca's memory, with three reservation rules."""

import heapq
from abc import abstractmethod
from collections.abc import Iterable

from testbed.core.batch import Batch
from testbed.core.sequence import Sequence
from testbed.core.slots import GRANTED, Answer, Copy, Extent, Ops, Refusal, Unowned, Usage, Waste, ceil_div
from testbed.memory.contiguous.buddy import BuddyAllocator
from testbed.memory.lockstep import Holding, Lockstep
from testbed.memory.policy import MemoryPolicy, PoolSpec


class Reservation(Holding):
    """A buddy range of 2^order blocks of which `slots` slots were asked for."""

    __slots__ = ("block", "order", "slots")

    def __init__(self, num_tokens: int, block: int, order: int, slots: int) -> None:
        super().__init__(num_tokens)
        self.block = block
        self.order = order
        self.slots = slots


class ContiguousLockstep(Lockstep[Reservation]):
    """Knows at which step the first reservation of the batch is full; stale heap entries are dropped on sight."""

    def __init__(self, batch: Batch, holdings: dict[int, Reservation]) -> None:
        self._full: list[tuple[int, int]] = []
        super().__init__(batch, holdings)

    def enter(self, seq_id: int, holding: Reservation) -> None:
        heapq.heappush(self._full, (holding.slots - holding.offset, seq_id))

    def leave(self, seq_id: int, holding: Reservation) -> None:
        """Nothing to do: the entry is stale from now on."""

    def room(self) -> int | None:
        """Steps until a member's reservation is full; None for an empty batch."""
        full = self._full
        while full:
            step, seq_id = full[0]
            holding = self.members.get(seq_id)
            if holding is not None and holding.slots - holding.offset == step:
                return step - self.clock.steps
            heapq.heappop(full)
        return None


class Contiguous(MemoryPolicy):
    """A buddy allocator of blocks, one reservation per sequence; the subclass says how much to reserve.

    Refuses LATER where no free range is large enough, NEVER where none could be in an empty pool.
    """

    def __init__(self, pool: PoolSpec, block_size: int = 16) -> None:
        self.block_size = block_size
        self.max_len = pool.max_len
        self._buddy = BuddyAllocator(pool.num_slots // block_size)
        self._largest_order = self._buddy.max_order
        self._holdings: dict[int, Reservation] = {}
        self._lockstep: ContiguousLockstep | None = None
        self._live = 0
        self._held = 0

    def admit(self, seq: Sequence, num_tokens: int) -> Answer:
        output_len = seq.final_len - seq.prompt_len if self.reads_output_len else 0
        slots = max(self.reservation(seq.prompt_len, output_len), num_tokens)
        order = self._order(slots)
        if order > self._largest_order:
            return Refusal.NEVER
        block = self._buddy.allocate(order)
        if block is None:
            return Refusal.LATER
        self._holdings[seq.seq_id] = Reservation(num_tokens, block, order, slots)
        self._live += num_tokens
        self._held += slots
        return GRANTED

    def extend(self, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
        if isinstance(seqs, Batch):
            return self._extend_batch(self._index(seqs), num_tokens)
        holdings = [self._holdings[seq.seq_id] for seq in seqs]
        if any(h.num_tokens + num_tokens > h.slots for h in holdings):
            return Refusal.NEVER
        for holding in holdings:
            holding.offset += num_tokens
        self._live += num_tokens * len(holdings)
        return GRANTED

    def release(self, seq: Sequence) -> None:
        holding = self._holdings.pop(seq.seq_id)
        self._live -= holding.num_tokens
        self._held -= holding.slots
        self._buddy.free(holding.block, holding.order)

    def table(self, seq: Sequence) -> list[Extent]:
        holding = self._holdings[seq.seq_id]
        return [Extent(holding.block * self.block_size, holding.slots)]

    def usage(self) -> Usage:
        size, buddy = self.block_size, self._buddy
        free = buddy.num_free * size
        total = buddy.num_units * size
        return Usage(total, self._live, self._held, total - free, 0, free, buddy.largest_free() * size)

    def horizon(self, seqs: Iterable[Sequence], limit: int) -> int:
        if isinstance(seqs, Batch):
            room = self._index(seqs).room()
        else:
            room = min((h.slots - h.num_tokens for h in map(self._holding, seqs)), default=None)
        return limit if room is None else min(room, limit)

    def waste(self, seq: Sequence, final_len: int) -> Waste:
        return Waste(0, max(self._holdings[seq.seq_id].slots - final_len, 0))

    def fits(self, prompt_len: int, output_len: int, num_seqs: int) -> bool:
        slots = self.reservation(prompt_len, output_len)
        return num_seqs <= self._buddy.num_units >> self._order(slots)

    @abstractmethod
    def reservation(self, prompt_len: int, output_len: int) -> int:
        """Slots to reserve for such a sequence; output_len is 0 unless the policy declares that it reads it."""

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        source, target = self._holdings[parent.seq_id], self._holdings[child.seq_id]
        size = self.block_size
        return Ops((Copy(source.block * size, target.block * size, source.num_tokens),))

    def unowned(self) -> Unowned:
        size = self.block_size
        ends = ((h.block * size + h.slots, (size << h.order) - h.slots) for h in self._holdings.values())
        return Unowned(rounding=tuple(Extent(end, length) for end, length in ends if length))

    def check(self) -> None:
        self._buddy.check()
        used = sum(1 << h.order for h in self._holdings.values())
        assert used + self._buddy.num_free == self._buddy.num_units, "blocks were lost or counted twice"
        assert self._live == sum(h.num_tokens for h in self._holdings.values()), "live slots are miscounted"
        assert self._held == sum(h.slots for h in self._holdings.values()), "held slots are miscounted"
        for seq_id, h in self._holdings.items():
            assert h.num_tokens <= h.slots <= self.block_size << h.order, f"sequence {seq_id} overran its reservation"

    def _order(self, slots: int) -> int:
        return (ceil_div(slots, self.block_size) - 1).bit_length()

    def _holding(self, seq: Sequence) -> Reservation:
        return self._holdings[seq.seq_id]

    def _index(self, batch: Batch) -> ContiguousLockstep:
        if self._lockstep is None or self._lockstep.batch is not batch:
            self._lockstep = ContiguousLockstep.on(batch, self._holdings) or ContiguousLockstep(batch, self._holdings)
        return self._lockstep

    def _extend_batch(self, index: ContiguousLockstep, num_tokens: int) -> Answer:
        room = index.room()
        if room is not None and room < num_tokens:
            return Refusal.NEVER
        index.clock.steps += num_tokens
        self._live += num_tokens * len(index.members)
        return GRANTED


class ContiguousMax(Contiguous):
    """Orca (Max): always the model's longest sequence."""

    def reservation(self, prompt_len: int, output_len: int) -> int:
        return self.max_len


class ContiguousPow2(Contiguous):
    """Orca (Pow2): the prompt and the next power of two of the output (section 6.1: for 25 it reserves 32)."""

    reads_output_len = True

    def reservation(self, prompt_len: int, output_len: int) -> int:
        return min(prompt_len + (1 << (output_len - 1).bit_length()), self.max_len)


class ContiguousOracle(Contiguous):
    """Orca (Oracle): exactly what will be used."""

    reads_output_len = True

    def reservation(self, prompt_len: int, output_len: int) -> int:
        return min(prompt_len + output_len, self.max_len)
