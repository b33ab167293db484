"""The debug mode: follows each slot's token, as the contract's checks do, and fills slots without
an owner with NaN.

It checks the contract's clause 5 on real memory: after the writes of an iteration each sequence
finds its own tokens in the slots of its table. So no two sequences have a slot for different
tokens, and no copy or move is forgotten.
"""

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from testbed.checks.contract.token_memory import TokenMemory
from testbed.core.slots import DEVICE, Extent
from testbed.kernels.engine.layout import Ints, Pools, Tables
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.engine.token_buffers import TokenBuffers
from testbed.memory.policy import PoolSpec
from testbed.sched.plan import Plan
from testbed.sched.state import SchedulerState


class SlotError(RuntimeError):
    """A sequence read or wrote a slot that it does not own; the message names sequence, slot and
    step.
    """


class NoSlotChecker:
    """Checks nothing. follows_tokens: whether it needs all tokens when a plan is launched."""

    follows_tokens = False

    def planned(self, plan: Plan) -> None:
        """Called before a plan is executed."""

    def landed(self, move_id: int) -> None:
        """Called when a transfer has ended."""

    def before(self, batch: Ragged) -> None:
        """Called before the forward pass of `batch`."""

    def after(self, batch: Ragged, logits: Tensor) -> None:
        """Called after the forward pass, with its logits."""

    def released(self) -> None:
        """Called after the plan was committed, which may have freed slots."""


class SlotChecker(NoSlotChecker):
    """Every slot has an id of its token together with all tokens before; `_written` has the writer
    and the position. `erase` fills slots with NaN.
    """

    follows_tokens = True

    def __init__(
        self,
        state: SchedulerState,
        pools: Pools,
        tables: Tables,
        token_buffers: TokenBuffers,
        pool: PoolSpec,
    ) -> None:
        self.state = state
        self.erase: Callable[[Ints], None] = pools.erase
        self.tables = tables
        self.token_buffers = token_buffers
        self.memory = TokenMemory(pool)
        self.step = 0
        self._written: dict[int, tuple[int, int]] = {}
        self._owned = np.zeros(pool.num_slots, bool)
        pools.device.fill_(pools.nan)

    def follow(self, pools: Pools) -> None:
        """Fill slots without an owner in these pools too."""
        erase = self.erase
        pools.device.fill_(pools.nan)

        def erase_both(slots: Ints) -> None:
            erase(slots)
            pools.erase(slots)

        self.erase = erase_both

    def planned(self, plan: Plan) -> None:
        self.step += 1
        for ops in plan.ops:
            self.memory.perform(ops)

    def landed(self, move_id: int) -> None:
        self.memory.land(move_id)

    def before(self, batch: Ragged) -> None:
        """Write the batch's tokens; raise SlotError for a sequence that does not find its
        tokens.
        """
        self.released()
        layout, ids, reads = self.tables.layout, dict[int, list[int]](), dict[int, Ints]()
        for group in self.state.with_slots():
            for seq in group.resident:
                ids[seq.seq_id] = self._ids(seq.seq_id)
                reads[seq.seq_id] = self._slots(seq.seq_id, self.state.policy.table(seq))[
                    : seq.num_stored
                ]
        for part, place in zip(batch.parts, batch.places, strict=True):
            seq_id, positions = part.seq.seq_id, np.arange(part.context_len)
            if part.drafts or seq_id not in ids:
                ids[seq_id] = self._ids(seq_id, part.drafts)
            slots = layout.slots(place, positions)
            reads[seq_id] = max(
                slots, reads.get(seq_id, slots), key=len
            )  # padding reads less than its sequence
            new = slice(max(part.num_stored, part.written), part.context_len)
            self.memory.write(slots[new].tolist(), ids[seq_id][new])
            self._written.update(
                zip(ids[seq_id][new], ((seq_id, at) for at in positions[new].tolist()), strict=True)
            )
        for seq_id, slots in reads.items():
            self._check_read(seq_id, slots.tolist(), ids[seq_id])

    def after(self, batch: Ragged, logits: Tensor) -> None:
        """Raise SlotError for NaN in the logits, which means that a kernel read a slot without an
        owner.
        """
        bad = torch.nonzero(~torch.isfinite(logits).all(dim=1)).flatten().tolist()
        if bad:
            part = [part for part in batch.parts for _ in range(part.wanted)][bad[0]]
            raise SlotError(
                f"{self._who(part.seq.seq_id)} has logits that are not finite: it read a slot of "
                "no sequence"
            )

    def released(self) -> None:
        """Fill every slot that lost its owner with NaN, and clear its entry."""
        owned, others = np.zeros_like(self._owned), self.state.memory.non_sequence_slots()
        for group in self.state.with_slots():
            for seq in group.resident:
                owned[self._slots(seq.seq_id, self.state.policy.table(seq))] = True
        owned[self._slots(-1, [*others.pinned, *others.cached, *others.in_transit])] = True
        gone = np.flatnonzero(self._owned & ~owned)
        if len(gone):
            self.erase(gone)
            for slot in gone.tolist():
                self.memory.tiers[DEVICE].pop(slot, None)
        self._owned = owned

    def _ids(self, seq_id: int, drafts: tuple[int, ...] = ()) -> list[int]:
        tokens = [*self.token_buffers.tokens[seq_id], *drafts]
        return [*accumulate(tokens, lambda *chain: hash(chain), initial=0)][1:]

    def _slots(self, seq_id: int, table: list[Extent]) -> Ints:
        slots = np.concatenate(
            [np.empty(0, np.int64), *(np.arange(first, first + n) for first, n in table)]
        )
        if len(slots) and not 0 <= slots.min() <= slots.max() < len(self._owned):
            raise SlotError(
                f"{self._who(seq_id)} has slots {slots.min()} to {slots.max()} of "
                f"{len(self._owned)}"
            )
        return slots

    def _check_read(self, seq_id: int, slots: list[int], ids: list[int]) -> None:
        stored = self.memory.read(slots)
        if stored == ids[: len(slots)]:
            return
        at = next(
            i
            for i, (is_there, expected) in enumerate(zip(stored, ids, strict=False))
            if is_there != expected
        )
        what, wrong = "nothing", stored[at]
        if isinstance(wrong, int):
            writer, position = self._written[wrong]
            what = f"token {position} that {self._name(writer)} wrote"
        raise SlotError(
            f"{self._who(seq_id)} reads slot {slots[at]} as its token {at}; it holds {what}"
        )

    def _who(self, seq_id: int) -> str:
        return f"step {self.step}: {self._name(seq_id)}"

    def _name(self, seq_id: int) -> str:
        for group in self.state.running.values():
            if any(seq.seq_id == seq_id for seq in group.sequences):
                return f"sequence {seq_id} of request {group.request_id}"
        return f"sequence {seq_id}"
