"""What every slot of a pool is at one time: its kind, its request, how many sequences hold it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.slots import Extent
from testbed.sim.memory_trace import Frame, MemoryTrace

FREE, ROUNDING, CACHED, PINNED, INTERNAL, RESERVED, LIVE = range(7)  # a slot of several kinds is the last of them
NOBODY, SEVERAL = -1, -2
Ints = NDArray[np.int64]


class Piece(NamedTuple):
    """Part of a table: extents that begin at logical slot `position` of a sequence."""

    owner: int
    position: int
    num_tokens: int
    final_len: int
    extents: tuple[Extent, ...]


class Slots(NamedTuple):
    """One entry a slot; owner is a request id, NOBODY, or SEVERAL."""

    kind: Ints
    owner: Ints
    holders: Ints


def device_slots(trace: MemoryTrace, frame: Frame) -> Slots:
    """The device pool."""
    slots = paint(trace.num_slots, device_pieces(trace, frame))
    for kind, extents in ((ROUNDING, frame.unowned.rounding), (CACHED, frame.unowned.cached)):
        slots.kind[indices(extents)] = kind
    pinned = indices(frame.unowned.pinned)
    slots.kind[pinned] = np.maximum(slots.kind[pinned], PINNED)
    return slots


def host_slots(trace: MemoryTrace, frame: Frame, num_slots: int) -> Slots:
    """The first num_slots slots of the host pool."""
    return paint(num_slots, host_pieces(trace, frame))


def device_pieces(trace: MemoryTrace, frame: Frame) -> list[Piece]:
    """What sequences hold on the device."""
    return [
        Piece(held.request_id, 0, held.num_tokens, trace.requests[held.request_id].final_len, held.device)
        for held in frame.held.values()
        if held.device
    ]


def host_pieces(trace: MemoryTrace, frame: Frame) -> list[Piece]:
    """What sequences hold on the host."""
    return [
        Piece(held.request_id, length(held.device), held.num_tokens, held.num_tokens, held.host)
        for held in frame.held.values()
        if held.host
    ]


def paint(num_slots: int, pieces: list[Piece]) -> Slots:
    """A pool with these pieces in it and nothing else."""
    kind = np.full(num_slots, FREE)
    owner = np.full(num_slots, NOBODY)
    if not pieces:
        return Slots(kind, owner, np.zeros(num_slots, int))
    counts = [length(piece.extents) for piece in pieces]
    where = indices([extent for piece in pieces for extent in piece.extents])
    ends = np.cumsum(counts)
    first = np.repeat([piece.position for piece in pieces] - (ends - counts), counts)
    logical = np.arange(ends[-1]) + first
    stored = logical < np.repeat([piece.num_tokens for piece in pieces], counts)
    used = logical < np.repeat([piece.final_len for piece in pieces], counts)
    for code, mask in ((INTERNAL, ~used), (RESERVED, used & ~stored), (LIVE, stored)):
        kind[where[mask]] = code
    owners = np.repeat([piece.owner for piece in pieces], counts)
    owner[where] = owners  # the last holder
    owner[where[owner[where] != owners]] = SEVERAL
    return Slots(kind, owner, np.bincount(where, minlength=num_slots))


def indices(extents: Iterable[Extent]) -> Ints:
    """Every slot of these extents, in order."""
    starts, lengths = np.array(list(extents), int).reshape(-1, 2).T
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)


def length(extents: Iterable[Extent]) -> int:
    """Slots of these extents."""
    return sum(extent.length for extent in extents)
