"""The control message of an iteration (section 4.6 of the paper): what the workers have to do, in
order, and all that they have to know for it: moves, block tables, token ids, positions.

A block table is sent when it is new; later messages name its sequence.
"""

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import Extent, Ops, Transfer
from testbed.kernels.engine.layout import Blocks, Ints, Place
from testbed.kernels.engine.on_device import Graphs
from testbed.kernels.engine.ragged import Late, Ragged
from testbed.kernels.engine.token_buffers import Part
from testbed.memory.policy import PoolSpec

if TYPE_CHECKING:
    from testbed.kernels.engine.parallel.follower import Follower


class Command(Protocol):
    """One thing to do."""

    def apply(self, worker: "Follower") -> None:
        """Do it."""


class Build(NamedTuple):
    """Make pools, and capture graphs, in place of those of an engine before.

    starts_as_nan: slots without an owner read as NaN (debug mode).
    """

    pool: PoolSpec
    layout: Blocks
    graphs: Graphs
    starts_as_nan: bool

    def apply(self, worker: "Follower") -> None:
        worker.members.clear()
        worker.build(self.pool, self.layout, self.graphs)
        if self.starts_as_nan:
            pools = worker.device.pools
            pools.device.fill_(pools.nan)


class Perform(NamedTuple):
    """Copies and moves. live: the tables of the sequences, if slots lie in extents."""

    ops: Ops
    live: list[list[Extent]]

    def apply(self, worker: "Follower") -> None:
        worker.live = self.live
        worker.device.moves.perform(self.ops)


class Begin(NamedTuple):
    """Begin transfers in the background."""

    transfers: list[Transfer]

    def apply(self, worker: "Follower") -> None:
        worker.device.moves.begin(self.transfers)


class Land(NamedTuple):
    """A transfer has ended on rank 0, and what it wrote or read may be used."""

    move_id: int

    def apply(self, worker: "Follower") -> None:
        worker.device.moves.land(self.move_id)


class Erase(NamedTuple):
    """Fill slots that have lost their owner with NaN (debug mode)."""

    slots: Ints

    def apply(self, worker: "Follower") -> None:
        worker.device.pools.erase(self.slots)


class LateTokens(NamedTuple):
    """The number of tokens that rank 0 has drawn and the host does not have, and of each token of
    the batch its place among them, or -1.
    """

    num_tokens: int
    rows: Ints


class Compute(NamedTuple):
    """A forward pass. parts: int64 [num_parts, 5], the sequence's id and, as in Part, new,
    num_stored, written and wanted.

    places: the tables that are new; gone: the sequences whose tables are not needed any more.
    """

    is_eager: bool
    num_prompts: int
    parts: Ints
    tokens: Ints
    positions: Ints
    wanted: Ints
    late: LateTokens | None
    places: dict[int, Place]
    gone: list[int]

    def apply(self, worker: "Follower") -> None:
        for seq_id in self.gone:
            del worker.members[seq_id]
        for seq_id, place in self.places.items():
            worker.members[seq_id] = Sequence(seq_id, Incoming(seq_id, 0, 1)), place
        forward = worker.eager if self.is_eager else worker.forward
        forward(self._batch(worker))

    def _batch(self, worker: "Follower") -> Ragged:
        parts, places = list[Part](), list[Place]()
        for seq_id, new, num_stored, written, wanted in self.parts.tolist():
            seq, place = worker.members[seq_id]
            parts.append(Part(seq, new, num_stored, written, wanted))
            places.append(place)
        late = None if self.late is None else self._late(self.late, worker)
        arrays = self.tokens, self.positions, self.wanted
        return Ragged(parts, self.num_prompts, *arrays, places, late)

    def _late(self, late: LateTokens, worker: "Follower") -> Late:
        tokens = torch.empty(
            late.num_tokens, dtype=torch.int64, device=worker.device.pools.device.device
        )
        worker.ranks.collectives.share(tokens)
        return Late(tokens, late.rows)


class End(NamedTuple):
    """Nothing more will come."""

    def apply(self, worker: "Follower") -> None:
        worker.has_ended = True


class Compiler:
    """Makes the commands of forward passes, and remembers which tables the workers have."""

    def __init__(self) -> None:
        self._sent: dict[int, Place] = {}

    def compute(self, batch: Ragged, kept: Container[int], *, is_eager: bool) -> Compute:
        """The command for a batch. kept: the sequences whose tables may be needed again."""
        rows = [(p.seq.seq_id, p.new, p.num_stored, p.written, p.wanted) for p in batch.parts]
        of_batch = {row[0]: place for row, place in zip(rows, batch.places, strict=True)}
        new = {i: place for i, place in of_batch.items() if self._sent.get(i) is not place}
        gone = [i for i in self._sent if i not in of_batch and i not in kept]
        for seq_id in gone:
            del self._sent[seq_id]
        self._sent |= new
        return Compute(
            is_eager=is_eager,
            num_prompts=batch.num_prompts,
            parts=np.array(rows, np.int64),
            tokens=batch.tokens,
            positions=batch.positions,
            wanted=batch.wanted,
            late=None
            if batch.late is None
            else LateTokens(len(batch.late.tokens), batch.late.rows),
            places=new,
            gone=gone,
        )
