"""Token ids of every sequence; and an iteration's work as flat arrays: prompts first, then one
token of each decode.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.kernels.engine.layout import Ints, Place, Tables
from testbed.sched.plan import Plan
from testbed.sched.state import SchedulerState

Owner = tuple[SequenceGroup, int]  # a group and which of its sequences


class Part(NamedTuple):
    """`new` tokens of a sequence that follow `num_stored` ones; `wanted`: the last token's logits
    are needed.

    Slots of tokens before position `written` contain their K and V already and are not written.
    """

    seq: Sequence
    new: int
    num_stored: int
    written: int
    wanted: bool

    @property
    def context_len(self) -> int:
        """Tokens that the last of the new ones reads."""
        return self.num_stored + self.new


class TokenBuffers:
    """Token ids by sequence id. A prompt without content ids gets random tokens that depend on seed
    and request.

    A content id covers one or more tokens (Mooncake: 512); equal content ids give equal tokens in
    every request.
    """

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.tokens: dict[int, list[int]] = {}
        self._ready: dict[int, list[int]] = {}

    def prepare(self, requests: Iterable[Incoming]) -> None:
        """Draw the prompts of requests before they arrive: a long one takes milliseconds."""
        self._ready.update((request.request_id, self.prompt(request)) for request in requests)

    def start(self, group: SequenceGroup) -> None:
        """Add a request's sequences."""
        prompt = self._ready.pop(group.request.request_id, None) or self.prompt(group.request)
        for seq in group.sequences:
            self.tokens[seq.seq_id] = list(prompt)

    def end(self, group: SequenceGroup) -> None:
        """Remove a finished request's sequences."""
        for seq in group.sequences:
            del self.tokens[seq.seq_id]

    def prompt(self, request: Incoming) -> list[int]:
        """The tokens of a request's prompt."""
        if request.prompt_ids is None:
            own = self._random(request.request_id, request.prompt_len)
        elif request.tokens_per_id == 1:
            own = [token % self.vocab_size for token in request.prompt_ids]
        else:
            own = [t for i in request.prompt_ids for t in self._content(i, request.tokens_per_id)]
        own[: request.registered_prefix] = self.registered_prefix(request.registered_prefix)
        return own[: request.prompt_len]

    def registered_prefix(self, num_tokens: int) -> list[int]:
        """The tokens of the registered prefix."""
        return self._random("prefix", num_tokens)

    def read(self, part: Part) -> list[int]:
        """The tokens of a part, all of which must exist; logits are wanted of the newest."""
        tokens, end = self.tokens[part.seq.seq_id], part.context_len
        there = len(tokens) == end if part.wanted else len(tokens) >= end
        assert there, f"{part.seq} has {len(tokens)} tokens and is to compute up to number {end}"
        return tokens[part.num_stored : end]

    @lru_cache(1 << 14)  # noqa: B019  (one object a run)
    def _content(self, content_id: int, length: int) -> list[int]:
        return self._random(f"content {content_id}", length)

    def _random(self, name: object, length: int) -> list[int]:
        rng = random.Random(f"{self.seed} {name}")
        return [rng.randrange(self.vocab_size) for _ in range(length)]


@dataclass(frozen=True, slots=True)
class Ragged:
    """tokens, positions: int64 [num_tokens]; wanted: the rows whose logits are needed; places: one
    per part.

    The first num_prompts parts are prompts; every other part is one token.
    """

    parts: list[Part]
    num_prompts: int
    tokens: Ints
    positions: Ints
    wanted: Ints
    places: list[Place]

    @property
    def query_starts(self) -> Ints:
        """The first row of each part, and the number of rows."""
        return np.concatenate([[0], np.cumsum([part.new for part in self.parts])])


def ragged(
    prompts: list[Part], decodes: list[Part], token_buffers: TokenBuffers, tables: Tables
) -> Ragged:
    """The arrays of these parts."""
    parts = prompts + decodes
    new = np.array([part.new for part in parts], np.int64)
    ends, contexts = np.cumsum(new), np.array([part.context_len for part in parts], np.int64)
    tokens = np.array([token for part in parts for token in token_buffers.read(part)], np.int64)
    return Ragged(
        parts,
        len(prompts),
        tokens,
        np.arange(len(tokens)) - np.repeat(ends - contexts, new),
        (ends - 1)[[part.wanted for part in parts]],
        [tables.place(part.seq, part.context_len) for part in parts],
    )


class Ahead:
    """The decodes of the sequences of a batch one step later, prepared while the device works on
    that batch.

    It serves requests with one sequence, whose tables grow but are not copied, moved or forked in
    between.
    """

    def __init__(self, batch: Ragged, owners: list[Owner]) -> None:
        self._alone = all(len(group.sequences) == 1 for group, _ in owners)
        self._rows = {group.request.request_id: row for row, (group, _) in enumerate(owners)}
        self._positions = batch.positions[batch.wanted] + 1
        wanted = [
            (part, place)
            for part, place in zip(batch.parts, batch.places, strict=True)
            if part.wanted
        ]
        self._parts = [
            Part(part.seq, 1, part.context_len, part.context_len, True) for part, _ in wanted
        ]
        self._places = [place for _, place in wanted]
        self._num_slots = np.array([place.num_slots for place in self._places], np.int64)

    def batch(
        self, groups: list[SequenceGroup], token_buffers: TokenBuffers, tables: Tables
    ) -> Ragged | None:
        """The batch in which these groups take a step, as `ragged` makes it; None if they were not
        all in the last.
        """
        rows = [self._rows.get(group.request.request_id, -1) for group in groups]
        if not rows or not self._alone or -1 in rows:
            return None
        parts, places = [self._parts[row] for row in rows], [self._places[row] for row in rows]
        positions = self._positions[rows]
        for i in np.nonzero(self._num_slots[rows] <= positions)[0].tolist():
            places[i] = tables.place(parts[i].seq, parts[i].context_len)
        tokens = [token_buffers.read(part)[0] for part in parts]
        return Ragged(
            parts, 0, np.array(tokens, np.int64), positions, np.arange(len(parts)), places
        )


def parts_of(
    plan: Plan, stepping: list[SequenceGroup], state: SchedulerState
) -> tuple[list[Part], list[Part], list[Owner]]:
    """Prompts, decodes, and the sequence that each row of the wanted logits belongs to.

    Padding recomputes stored tokens of the same sequences and discards the result, so that a static
    batch takes its real time, except for attention to positions that no sequence has.
    """
    prompts, owners = [], []
    for chunk in plan.chunks:
        whole = chunk.num_stored + chunk.new == chunk.group.prefill_len
        prompts.append(Part(chunk.seq, chunk.new, chunk.num_stored, chunk.seq.num_stored, whole))
        if whole:
            owners.append((chunk.group, chunk.group.sequences.index(chunk.seq)))
    members = [(group, i) for group in stepping for i in range(len(group.sequences))]
    stepped = [group.sequences[i] for group, i in members]
    decodes = [Part(seq, 1, seq.num_stored, seq.num_stored, True) for seq in stepped]
    prompts += padding(plan)
    if plan.decode_seqs > len(members):
        decodes += ended(stepping, state)
    return prompts, decodes, owners + members


def padding(plan: Plan) -> Iterator[Part]:
    """The padding of each chunk, in parts of at most the chunk's length."""
    for chunk in plan.chunks:
        left = chunk.padding
        while left:
            again = min(left, chunk.num_stored + chunk.new)
            yield Part(chunk.seq, again, 0, again, False)
            left -= again


def ended(stepping: list[SequenceGroup], state: SchedulerState) -> list[Part]:
    """The last stored token of each finished sequence that waits for the rest of its batch."""
    decoding = {group.request.request_id for group in stepping}
    waiting = [group for request_id, group in state.running.items() if request_id not in decoding]
    return [
        Part(seq, 1, seq.num_stored - 1, seq.num_stored, False)
        for group in waiting
        for seq in group.sequences
    ]


class Arrays:
    """Arrays of given shapes and types, on the host as NumPy and on the device as tensors of the
    same names.

    Host and device have one buffer each, so that one transfer copies all arrays.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]], device: torch.device
    ) -> None:
        packed = np.dtype(
            [(name, kind, shape) for name, (shape, kind) in shapes.items()], align=True
        )
        self._packed = torch.zeros(
            packed.itemsize, dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self._there = torch.empty(packed.itemsize, dtype=torch.uint8, device=device)
        (row,) = self._packed.numpy().view(packed)
        self.host: dict[str, NDArray[Any]] = {name: row[name] for name in shapes}
        self.device: dict[str, Tensor] = {}
        fields: Any = packed.fields
        for name, (shape, kind) in shapes.items():
            field, at = fields[name]
            rows = self._there[at : at + field.itemsize].view(getattr(torch, np.dtype(kind).name))
            self.device[name] = rows.view(shape)

    def send(self) -> None:
        """Copy the host's arrays to the device on the current stream; the host does not wait."""
        self._there.copy_(self._packed, non_blocking=True)


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    """The same arrays on `device`, by one transfer."""
    packed = Arrays({name: (array.shape, array.dtype) for name, array in arrays.items()}, device)
    for name, array in arrays.items():
        packed.host[name][...] = array
    packed.send()
    return packed.device
