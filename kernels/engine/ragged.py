"""An iteration's work as flat arrays: prompts first, then one token of each decode."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from testbed.core.sequence import Sequence, SequenceGroup
from testbed.kernels.engine.layout import Ints, Place, Tables
from testbed.kernels.engine.token_buffers import Drawn, Owner, Part, TokenBuffers
from testbed.sched.plan import Chunk, Plan
from testbed.sched.state import SchedulerState

Drafts = Mapping[int, tuple[int, ...]]  # draft tokens by sequence id
Shapes = Mapping[str, tuple[tuple[int, ...], DTypeLike]]  # and types, of arrays by name

NO_DRAFTS: Drafts = {}


class Late(NamedTuple):
    """The tokens of a batch that only the device has so far.

    tokens: on the device, those that the launch before has sampled. rows: int64 [num_tokens], for
    each token of the batch its row in `tokens`, or -1 if the host has the token.
    """

    tokens: Tensor
    rows: Ints


@dataclass(frozen=True, slots=True)
class Ragged:
    """The parts of an iteration, one behind the other. The first num_prompts parts are prompts, or
    tokens with drafts behind them; every other part is one token.

    tokens, positions: int64 [num_tokens]. wanted: the rows whose logits are needed. places: where
    the K and V of each part lie. late: the tokens that the host does not have yet, which are 0 in
    `tokens`; None: the host has all.
    """

    parts: list[Part]
    num_prompts: int
    tokens: Ints
    positions: Ints
    wanted: Ints
    places: list[Place]
    late: Late | None = None

    @property
    def query_starts(self) -> Ints:
        """The first row of each part, and the number of rows."""
        return np.concatenate([[0], np.cumsum([part.new for part in self.parts])])


def ragged(
    prompts: list[Part],
    decodes: list[Part],
    token_buffers: TokenBuffers,
    tables: Tables,
    under_way: Drawn | None = None,
) -> Ragged:
    """The arrays of these parts. under_way: the tokens that the launch before has sampled, or None
    if the host has them.
    """
    parts = prompts + decodes
    new = np.array([part.new for part in parts], np.int64)
    ends, contexts = np.cumsum(new), np.array([part.context_len for part in parts], np.int64)
    tokens, late = tokens_of(parts, token_buffers, under_way)
    return Ragged(
        parts=parts,
        num_prompts=len(prompts),
        tokens=tokens,
        positions=np.arange(len(tokens)) - np.repeat(ends - contexts, new),
        wanted=_wanted_rows(parts, ends),
        places=[tables.place(part.seq, part.context_len) for part in parts],
        late=late,
    )


def _wanted_rows(parts: list[Part], ends: Ints) -> Ints:
    """The rows of the last tokens of each part whose logits are needed. ends: of each part."""
    counts = np.array([part.wanted for part in parts], np.int64)
    ranks = np.cumsum(counts)  # of the rows of the result
    return np.arange(counts.sum()) + np.repeat(ends - ranks, counts)


def tokens_of(
    parts: list[Part], token_buffers: TokenBuffers, under_way: Drawn | None
) -> tuple[Ints, Late | None]:
    """The tokens of these parts, and which of them the host does not have yet."""
    if under_way is None or not any(map(token_buffers.is_late, parts)):
        return np.array([t for part in parts for t in token_buffers.read(part)], np.int64), None
    tokens, rows = list[int](), list[int]()
    for part in parts:
        if token_buffers.is_late(part):
            tokens.append(0)
            rows.append(under_way.rows[part.seq.seq_id])
        else:
            tokens += token_buffers.read(part)
            rows += [-1] * part.new
    return np.array(tokens, np.int64), Late(under_way.tokens, np.array(rows, np.int64))


class Ahead:
    """The decodes of the sequences of a batch one step later, prepared while the device works on
    that batch.

    It serves requests with one sequence; a table whose version was raised since is read again.
    """

    def __init__(self, batch: Ragged, owners: list[Owner]) -> None:
        self._alone = all(len(group.sequences) == 1 for group, *_ in owners)
        self._rows = {owner.group.request_id: row for row, owner in enumerate(owners)}
        self._positions = batch.positions[batch.wanted] + 1
        wanted = [
            (part, place)
            for part, place in zip(batch.parts, batch.places, strict=True)
            if part.wanted
        ]
        self._parts = [
            Part(
                seq=part.seq, new=1, num_stored=part.context_len, written=part.context_len, wanted=1
            )
            for part, _ in wanted
        ]
        self._places = [place for _, place in wanted]
        self._versions = [part.seq.version for part in self._parts]
        self._num_slots = np.array([place.num_slots for place in self._places], np.int64)

    def batch(
        self,
        groups: list[SequenceGroup],
        token_buffers: TokenBuffers,
        tables: Tables,
        under_way: Drawn | None,
    ) -> Ragged | None:
        """The batch in which these groups take a step, equal to what `ragged` makes; None if one of
        them was not in the batch before.
        """
        rows = [self._rows.get(group.request_id, -1) for group in groups]
        if not rows or not self._alone or -1 in rows:
            return None
        parts, places = [self._parts[row] for row in rows], [self._places[row] for row in rows]
        positions = self._positions[rows]
        is_old = self._num_slots[rows] <= positions
        is_old |= [
            part.seq.version != self._versions[row] for part, row in zip(parts, rows, strict=True)
        ]
        for i in np.nonzero(is_old)[0].tolist():
            places[i] = tables.place(parts[i].seq, parts[i].context_len)
        tokens, late = tokens_of(parts, token_buffers, under_way)
        return Ragged(
            parts=parts,
            num_prompts=0,
            tokens=tokens,
            positions=positions,
            wanted=np.arange(len(parts)),
            places=places,
            late=late,
        )


def parts_of(
    plan: Plan, stepping: list[SequenceGroup], state: SchedulerState, drafts: Drafts = NO_DRAFTS
) -> tuple[list[Part], list[Part], list[Owner]]:
    """Prompts, decodes, and the sequence that each row of the wanted logits belongs to. drafts: the
    tokens of Plan.drafts.

    Padding recomputes stored tokens of the same sequences and discards the result, so that a static
    batch takes its real time, except for attention to positions that no sequence has.
    """
    prompts, owners = [], []
    for chunk in plan.chunks:
        is_complete = chunk.num_stored + chunk.new == chunk.group.prefill_len
        prompts.append(chunk_part(chunk, int(is_complete)))
        if is_complete:
            owners.append(Owner(chunk.group, chunk.group.sequences.index(chunk.seq)))
    members = [Owner(group, i) for group in stepping for i in range(len(group.sequences))]
    stepped = [group.sequences[i] for group, i, _ in members]
    decodes = [
        Part(seq=seq, new=1, num_stored=seq.num_stored, written=seq.num_stored, wanted=1)
        for seq in stepped
    ]
    prompts += padding(plan)
    if plan.decode_seqs > len(members):
        decodes += ended(plan, stepping, state)
    for draft in sorted(plan.drafts, key=lambda draft: not drafts[draft.seq.seq_id]):
        tokens = drafts[draft.seq.seq_id]
        (prompts if tokens else decodes).append(verified_part(draft.seq, tokens))
        members += [Owner(draft.group, 0, i) for i in range(1 + len(tokens))]
    return prompts, decodes, owners + members


def chunk_part(chunk: Chunk, wanted: int) -> Part:
    """The part of a chunk of a prompt."""
    return Part(chunk.seq, chunk.new, chunk.num_stored, chunk.seq.num_stored, wanted)


def verified_part(seq: Sequence, tokens: tuple[int, ...]) -> Part:
    """The newest token of a sequence and the draft tokens behind it; all logits are needed."""
    num_new = 1 + len(tokens)
    return Part(
        seq=seq,
        new=num_new,
        num_stored=seq.num_stored,
        written=seq.num_stored,
        wanted=num_new,
        drafts=tokens,
    )


def padding(plan: Plan) -> Iterator[Part]:
    """The padding of each chunk, in parts of at most the chunk's length."""
    for chunk in plan.chunks:
        left = chunk.padding
        while left:
            num_tokens = min(left, chunk.num_stored + chunk.new)
            yield Part(seq=chunk.seq, new=num_tokens, num_stored=0, written=num_tokens, wanted=0)
            left -= num_tokens


def ended(plan: Plan, stepping: list[SequenceGroup], state: SchedulerState) -> list[Part]:
    """The last stored token of each finished sequence that waits for the rest of its batch."""
    groups = [*stepping, *(chunk.group for chunk in plan.chunks)]
    computing = {group.request_id for group in groups}
    waiting = [
        group
        for request_id, group in state.running.items()
        if request_id not in computing and not group.todo
    ]
    return [
        Part(seq=seq, new=1, num_stored=seq.num_stored - 1, written=seq.num_stored, wanted=0)
        for group in waiting
        for seq in group.sequences
    ]


class Arrays:
    """Arrays of given shapes and types, on the host as NumPy and on the device as tensors of the
    same names.

    Host and device have one buffer each, so that one transfer copies all arrays. num_hosts: buffers
    of the host that take turns, so that the next arrays may be set while the last are copied.
    """

    def __init__(
        self,
        shapes: Shapes,
        device: torch.device,
        num_hosts: int = 1,
    ) -> None:
        packed = np.dtype(
            [(name, dtype, shape) for name, (shape, dtype) in shapes.items()], align=True
        )
        size, pinned = (num_hosts, packed.itemsize), device.type == "cuda"
        self._packed = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        self._on_device = torch.empty(packed.itemsize, dtype=torch.uint8, device=device)
        self.hosts: list[dict[str, NDArray[Any]]] = [
            {name: host[name] for name in shapes} for (host,) in self._packed.numpy().view(packed)
        ]
        self.turn = 0
        self.device: dict[str, Tensor] = {}
        fields: Any = packed.fields
        for name, (shape, dtype) in shapes.items():
            field, at = fields[name]
            rows = self._on_device[at : at + field.itemsize].view(
                getattr(torch, np.dtype(dtype).name)
            )
            self.device[name] = rows.view(shape)

    @property
    def host(self) -> dict[str, NDArray[Any]]:
        """The arrays of the buffer whose turn it is."""
        return self.hosts[self.turn]

    def take_turns(self) -> None:
        """The next buffer's turn."""
        self.turn = (self.turn + 1) % len(self.hosts)

    def send(self) -> None:
        """Copy the host's arrays to the device on the current stream; the host does not wait."""
        self._on_device.copy_(self._packed[self.turn], non_blocking=True)


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    """The same arrays on `device`, by one transfer."""
    packed = Arrays({name: (array.shape, array.dtype) for name, array in arrays.items()}, device)
    for name, array in arrays.items():
        packed.host[name][...] = array
    packed.send()
    return packed.device


def input_shapes(num_tokens: int) -> Shapes:
    """The arrays from which a forward pass begins."""
    return {name: ((num_tokens,), np.int64) for name in ("tokens", "positions", "late")}


def fill_inputs(host: Mapping[str, NDArray[Any]], batch: Ragged) -> None:
    """Set the arrays of `input_shapes` to a batch."""
    num = len(batch.tokens)
    host["tokens"][:num], host["positions"][:num] = batch.tokens, batch.positions
    if batch.late is not None:
        host["late"][:num] = batch.late.rows


def complete(device: Mapping[str, Tensor], batch: Ragged) -> None:
    """Set the tokens that the host did not have, in the arrays of `input_shapes` on the device."""
    if batch.late is None:
        return
    tokens, rows = (device[name][: len(batch.tokens)] for name in ("tokens", "late"))
    tokens.copy_(torch.where(rows < 0, tokens, batch.late.tokens[rows]))
