"""What every slot of a pool is at one time: its kind, its request, how many sequences hold it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.slots import Extent
from testbed.memory.traced import Held
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
    """One entry a slot looked at; owner is a request id, NOBODY, or SEVERAL."""

    kind: Ints
    owner: Ints
    holders: Ints


def device_slots(trace: MemoryTrace, frame: Frame, samples: Ints) -> Slots:
    """The slots `samples`, in order of address, of the device pool."""
    slots = paint(samples, device_pieces(trace, frame))
    for kind, extents in ((ROUNDING, frame.unowned.rounding), (CACHED, frame.unowned.cached)):
        slots.kind[inside(samples, extents)] = kind
    pinned = inside(samples, frame.unowned.pinned)
    slots.kind[pinned] = np.maximum(slots.kind[pinned], PINNED)
    return slots


def host_slots(trace: MemoryTrace, frame: Frame, samples: Ints) -> Slots:
    """The same of the host pool."""
    return paint(samples, host_pieces(trace, frame))


def device_pieces(trace: MemoryTrace, frame: Frame) -> list[Piece]:
    """What sequences hold on the device."""
    return [piece(trace, held, 0, held.device) for held in frame.held.values() if held.device]


def host_pieces(trace: MemoryTrace, frame: Frame) -> list[Piece]:
    """What sequences hold on the host, behind what has stayed on the device."""
    return [
        piece(trace, held, sum(extent.length for extent in held.device), held.host)
        for held in frame.held.values()
        if held.host
    ]


def piece(trace: MemoryTrace, held: Held, position: int, extents: tuple[Extent, ...]) -> Piece:
    """These extents of a sequence."""
    return Piece(held.request_id, position, held.num_tokens, trace.requests[held.request_id].final_len, extents)


def paint(samples: Ints, pieces: list[Piece]) -> Slots:
    """These slots of a pool with these pieces in it and nothing else."""
    kind = np.full(len(samples), FREE)
    owner = np.full(len(samples), NOBODY)
    if not pieces:
        return Slots(kind, owner, np.zeros(len(samples), int))
    starts, lengths = columns(extent for piece in pieces for extent in piece.extents)
    where, counts = sampled(samples, starts, lengths)
    logical = samples[where] - np.repeat(starts - first_logical(pieces, lengths), counts)
    of_extent = np.repeat(np.arange(len(pieces)), [len(piece.extents) for piece in pieces])
    owners, _, stored, final = columns(piece[:4] for piece in pieces)[:, np.repeat(of_extent, counts)]
    for code, mask in ((INTERNAL, logical >= final), (RESERVED, logical < final), (LIVE, logical < stored)):
        kind[where[mask]] = code
    owner[where] = owners  # the last holder
    owner[where[owner[where] != owners]] = SEVERAL
    return Slots(kind, owner, np.bincount(where, minlength=len(samples)))


def first_logical(pieces: list[Piece], lengths: Ints) -> Ints:
    """The logical slot with which each extent begins."""
    before = np.cumsum(lengths) - lengths
    counts = [len(piece.extents) for piece in pieces]
    heads = np.cumsum(counts) - counts
    return before - np.repeat(before[heads] - [piece.position for piece in pieces], counts)


def inside(samples: Ints, extents: Iterable[Extent]) -> Ints:
    """Which samples lie in these extents."""
    return sampled(samples, *columns(extents))[0]


def sampled(samples: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Which samples lie in each extent, one extent after the other, and how many in each."""
    low, high = np.searchsorted(samples, [starts, starts + lengths])
    counts = high - low
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(low - (ends - counts), counts), counts


def columns(rows: Iterable[tuple[int, ...]]) -> Ints:
    """Rows of numbers as columns; no rows are extents."""
    table = np.array(list(rows), int)
    return table.T if len(table) else np.zeros((2, 0), int)
