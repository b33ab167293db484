"""The debug mode: checks the owner and the token of each slot at every step, and fills unowned slots with NaN.

It checks the contract's clause 5 on real memory: two sequences have a slot only if they share its token, no sequence
writes a shared slot, and a sequence that reads a slot finds the expected token.
"""

from collections.abc import Iterable
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from testbed.core.slots import DEVICE, HOST, Extent, Ops
from testbed.kernels.engine.layout import Ints, Pools, Tables
from testbed.kernels.engine.ragged import Part, Ragged
from testbed.kernels.engine.token_buffers import TokenBuffers
from testbed.sched.plan import Plan
from testbed.sched.state import SchedulerState

EMPTY = -1


class SlotError(RuntimeError):
    """A sequence read or wrote a slot that it does not own; the message names sequence, slot and step."""


class NoSlotChecker:
    """Checks nothing."""

    def planned(self, plan: Plan) -> None:
        """Called before a plan is executed."""

    def moved(self, ops: Ops) -> None:
        """Called after these copies and moves."""

    def before(self, batch: Ragged) -> None:
        """Called before the forward pass of `batch`."""

    def after(self, batch: Ragged, logits: Tensor) -> None:
        """Called after the forward pass, with its logits."""

    def released(self) -> None:
        """Called after the plan was committed, which may have freed slots."""


class Tier:
    """Per slot of one tier: a token's `position`, its `content` id (of it and all tokens before), and its `writer`."""

    def __init__(self, num_slots: int) -> None:
        self.position = np.full(num_slots, EMPTY, np.int64)
        self.content = np.zeros(num_slots, np.int64)
        self.writer = np.full(num_slots, EMPTY, np.int64)

    def take(self, slots: Ints, other: "Tier", source: Ints) -> None:
        """Copy the entries of slots `source` of another tier to these slots."""
        self.position[slots] = other.position[source]
        self.content[slots] = other.content[source]
        self.writer[slots] = other.writer[source]


class SlotChecker(NoSlotChecker):
    """See the module docstring; `names` finds a request by sequence id."""

    def __init__(
        self, state: SchedulerState, pools: Pools, tables: Tables, token_buffers: TokenBuffers, host_slots: int
    ) -> None:
        self.state = state
        self.pools = pools
        self.tables = tables
        self.token_buffers = token_buffers
        self.step = 0
        kv_heads = pools.spec.num_kv_heads
        self.tiers = {DEVICE: Tier(pools.all_rows().shape[1] // kv_heads), HOST: Tier(host_slots)}
        self._owned = np.zeros(len(self.tiers[DEVICE].position), bool)
        pools.device.fill_(pools.nan)

    def planned(self, plan: Plan) -> None:
        """Begin a step."""
        self.step += 1
        self.tables.forget_all()

    def moved(self, ops: Ops) -> None:
        """Move the checker's entries as the bytes were moved."""
        device = self.tiers[DEVICE]
        for src, dst, length in ops.copies:
            device.take(np.arange(dst, dst + length), device, np.arange(src, src + length))
        for move in ops.moves:
            for src, dst, length in move.copies:
                target, source = self.tiers[move.target], self.tiers[move.source]
                target.take(np.arange(dst, dst + length), source, np.arange(src, src + length))

    def before(self, batch: Ragged) -> None:
        """Check owners, writes to shared slots, and the tokens that are read."""
        contents = self._contents(batch)
        self._check_owners(contents)
        self.released()
        writers = self._write(batch, contents)
        self._check_sharers(writers)
        for part, place in zip(batch.parts, batch.places, strict=True):
            slots = self.tables.layout.slots(place, np.arange(part.context_len))
            self._check_read(part, slots, contents[part.seq.seq_id])

    def after(self, batch: Ragged, logits: Tensor) -> None:
        """Raise SlotError for NaN in the logits, which means that a kernel read an unowned slot."""
        bad = torch.nonzero(~torch.isfinite(logits).all(dim=1)).flatten().tolist()
        if bad:
            part = [part for part in batch.parts if part.wanted][bad[0]]
            raise SlotError(
                f"{self._who(part.seq.seq_id)} has logits that are not finite: it read a slot of no sequence"
            )

    def released(self) -> None:
        """Fill every slot that lost its owner with NaN, and clear its entry."""
        owned = np.zeros_like(self._owned)
        for _, slots, _ in self._holders():
            owned[slots] = True
        non_sequence_slots = self.state.policy.non_sequence_slots()
        for extent in (*non_sequence_slots.pinned, *non_sequence_slots.cached):
            owned[extent.start : extent.start + extent.length] = True
        gone = np.flatnonzero(self._owned & ~owned)
        if len(gone):
            heads = self.pools.spec.num_kv_heads
            rows = (gone[:, None] * heads + np.arange(heads)).ravel()  # whole blocks or extents: any order
            self.pools.all_rows()[:, torch.from_numpy(rows).to(self.pools.device.device)] = self.pools.nan
            self.tiers[DEVICE].position[gone] = EMPTY
        self._owned = owned

    def _holders(self) -> Iterable[tuple[int, Ints, int]]:
        """Every sequence on the device: its id, the slots of its table in order, and its num_slots."""
        for group in self.state.with_slots():
            for seq in group.resident:
                yield seq.seq_id, slots_of(self.state.policy.table(seq)), seq.num_slots

    def _contents(self, batch: Ragged) -> dict[int, Ints]:
        """An id for every token of every sequence together with all tokens before it, by sequence id."""
        tokens = self.token_buffers.tokens
        seq_ids = [part.seq.seq_id for part in batch.parts]
        seq_ids += [seq.seq_id for group in self.state.with_slots() for seq in group.resident]
        return {i: np.array([*accumulate(tokens[i], _chain, initial=0)][1:], np.int64) for i in set(seq_ids)}

    def _check_owners(self, contents: dict[int, Ints]) -> None:
        """Two tables may contain one slot only as the same token of both, where the policy shares."""
        num_slots = len(self._owned)
        owner, position, content = (np.full(num_slots, EMPTY, np.int64) for _ in range(3))
        for extent in self.state.policy.non_sequence_slots().cached:
            owner[extent.start : extent.start + extent.length] = num_slots
        for seq_id, slots, allowed in self._holders():
            self._check_inside(seq_id, slots, num_slots)
            places = np.arange(len(slots))
            known = min(allowed, len(contents[seq_id]), len(slots))
            mine = np.full(len(slots), EMPTY, np.int64)
            mine[:known] = contents[seq_id][:known]
            others = owner[slots] != EMPTY
            same = (position[slots] == places) & (
                (content[slots] == mine) | (content[slots] == EMPTY) | (mine == EMPTY)
            )
            bad = np.flatnonzero(others & ~(same & self.state.policy.shares))
            if len(bad):
                slot = int(slots[bad[0]])
                raise SlotError(f"{self._who(seq_id)} owns slot {slot}, and so does {self._name(int(owner[slot]))}")
            new = (mine != EMPTY) | ~others
            owner[slots[new]], position[slots[new]], content[slots[new]] = seq_id, places[new], mine[new]

    def _check_inside(self, seq_id: int, slots: Ints, num_slots: int) -> None:
        wrong = slots[(slots < 0) | (slots >= num_slots)]
        if len(wrong):
            raise SlotError(f"{self._who(seq_id)} has slot {wrong[0]}, the pool ends at {num_slots - 1}")

    def _write(self, batch: Ragged, contents: dict[int, Ints]) -> dict[int, tuple[int, int]]:
        """Record the batch's writes; returns the writing sequence and the token's position by slot."""
        device, writers = self.tiers[DEVICE], dict[int, tuple[int, int]]()
        for part, place in zip(batch.parts, batch.places, strict=True):
            seq_id = part.seq.seq_id
            positions = np.arange(max(part.num_stored, part.written), part.context_len)
            slots = self.tables.layout.slots(place, positions)
            for slot, at in zip(slots.tolist(), positions.tolist(), strict=True):
                if slot in writers:
                    other = self._name(writers[slot][0])
                    raise SlotError(f"{self._who(seq_id)} writes its token {at} to slot {slot}, and so does {other}")
                writers[slot] = seq_id, at
            device.position[slots], device.content[slots] = positions, contents[seq_id][positions]
            device.writer[slots] = seq_id
        return writers

    def _check_sharers(self, writers: dict[int, tuple[int, int]]) -> None:
        """A written slot is in no other table, except where this write is the other sequence's cached token."""
        if not writers:
            return
        num_stored = {seq.seq_id: seq.num_stored for g in self.state.with_slots() for seq in g.resident}
        who, where = (np.full(len(self._owned), EMPTY, np.int64) for _ in range(2))
        slots = np.array(list(writers), np.int64)
        who[slots], where[slots] = np.array(list(writers.values()), np.int64).T
        for seq_id, slots, _ in self._holders():
            places, writer = np.arange(len(slots)), who[slots]
            counted = (where[slots] == places) & (places < num_stored[seq_id])
            bad = np.flatnonzero((writer != EMPTY) & (writer != seq_id) & ~counted)
            if len(bad):
                at = int(bad[0])
                raise SlotError(
                    f"{self._who(int(writer[at]))} writes its token {where[slots[at]]} to slot {slots[at]}, which is "
                    f"shared with {self._name(seq_id)}"
                )

    def _check_read(self, part: Part, slots: Ints, contents: Ints) -> None:
        device, positions = self.tiers[DEVICE], np.arange(len(slots))
        right = (device.position[slots] == positions) & (device.content[slots] == contents[: len(slots)])
        if not right.all():
            at = int(np.flatnonzero(~right)[0])
            slot = int(slots[at])
            found, writer = int(device.position[slot]), int(device.writer[slot])
            what = "nothing" if found == EMPTY else f"token {found} that {self._name(writer)} wrote"
            raise SlotError(f"{self._who(part.seq.seq_id)} reads slot {slot} as its token {at}; it holds {what}")

    def _who(self, seq_id: int) -> str:
        return f"step {self.step}: {self._name(seq_id)}"

    def _name(self, seq_id: int) -> str:
        if seq_id >= len(self._owned):
            return "the cache of unreferenced blocks"
        for group in self.state.running.values():
            if any(seq.seq_id == seq_id for seq in group.sequences):
                return f"sequence {seq_id} of request {group.request.request_id}"
        return f"sequence {seq_id}"


def slots_of(table: list[Extent]) -> Ints:
    """The slots of a table in order."""
    runs = [np.arange(start, start + length) for start, length in table]
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _chain(before: int, token: int) -> int:
    return hash((before, token)) >> 1  # the name of a token and all before it; never EMPTY in practice
