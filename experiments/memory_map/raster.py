"""A pool as an image: a column of pixels per time, a row per address; a pixel shows the kind of its slots.

Colours distinguish requests, textures distinguish kinds of slots; the page uses the same.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.slots import Extent
from testbed.memory.traced import Held
from testbed.sim.memory_trace import Frame, MemoryTrace

FREE, ROUNDING, CACHED, PINNED, INTERNAL, RESERVED, LIVE = range(7)  # a slot of several kinds is the last of them
NO_OWNER, SEVERAL = -1, -2
Ints = NDArray[np.int64]
Image = NDArray[np.float32]

# Hues a golden angle apart in OKLCH, three lightnesses: neighbours in order of arrival never look alike.
PALETTE = (
    "#4687d8", "#ea846f", "#008663", "#9d6dc7", "#ca9d33", "#007da5", "#c85e83", "#7bb764", "#5a66b9",
    "#c66a26", "#00beb7", "#965095", "#938a00", "#51adef", "#ad4a4e", "#189f64", "#ab93ed", "#9b5f00",
)  # fmt: skip
SEVERAL_COLOR = "#46505f"
PLAIN = {FREE: "#ffffff", ROUNDING: "#d9dce1", CACHED: "#b4c3d6", PINNED: "#7d8896"}
TINTS = {RESERVED: 0.70, INTERNAL: 0.90}
LINES = {INTERNAL: "#d1495b", ROUNDING: "#8b929c"}
NAMES = {
    LIVE: "token states, colour by request",
    RESERVED: "reserved, will be used",
    INTERNAL: "internal fragmentation (never used)",
    ROUNDING: "external fragmentation (rounding)",
    CACHED: "cached (unreferenced, findable)",
    PINNED: "registered prefix",
    FREE: "free",
}
SHARED_NAME = "shared (several sequences)"
MIN_BLOCK_PIXELS = 7


class Piece(NamedTuple):
    """Part of a table: extents that begin at logical slot `position` of a sequence."""

    owner: int
    position: int
    num_tokens: int
    final_len: int
    extents: tuple[Extent, ...]


class Slots(NamedTuple):
    """One entry per sampled slot; owner is a request id, NO_OWNER, or SEVERAL."""

    kind: Ints
    owner: Ints
    holders: Ints


def device_slots(trace: MemoryTrace, frame: Frame, samples: Ints) -> Slots:
    """The slots `samples`, in order of address, of the device pool."""
    slots = paint(samples, pieces(trace, ((held, 0, held.device) for held in frame.held.values())))
    for kind, extents in ((ROUNDING, frame.non_sequence_slots.rounding), (CACHED, frame.non_sequence_slots.cached)):
        slots.kind[inside(samples, extents)] = kind
    pinned = inside(samples, frame.non_sequence_slots.pinned)
    slots.kind[pinned] = np.maximum(slots.kind[pinned], PINNED)
    return slots


def host_slots(trace: MemoryTrace, frame: Frame, samples: Ints) -> Slots:
    """The slots `samples` of the host pool, where a table follows its part on the device."""
    parts = ((held, sum(extent.length for extent in held.device), held.host) for held in frame.held.values())
    return paint(samples, pieces(trace, parts))


def pieces(trace: MemoryTrace, parts: Iterable[tuple[Held, int, tuple[Extent, ...]]]) -> list[Piece]:
    """The pieces of one pool, for all sequences that have any: first logical slot, and extents."""
    return [
        Piece(held.request_id, position, held.num_tokens, trace.requests[held.request_id].final_len, extents)
        for held, position, extents in parts
        if extents
    ]


def paint(samples: Ints, pieces: list[Piece]) -> Slots:
    """These slots of a pool that contains only these pieces."""
    kind = np.full(len(samples), FREE)
    owner = np.full(len(samples), NO_OWNER)
    if not pieces:
        return Slots(kind, owner, np.zeros(len(samples), int))
    starts, lengths = columns(extent for piece in pieces for extent in piece.extents)
    where, counts = sampled(samples, starts, lengths)
    logical = samples[where] - np.repeat(starts - first_logical(pieces, lengths), counts)
    of_extent = np.repeat(np.arange(len(pieces)), [len(piece.extents) for piece in pieces])
    owners, _, num_stored, final = columns(piece[:4] for piece in pieces)[:, np.repeat(of_extent, counts)]
    for code, mask in ((INTERNAL, logical >= final), (RESERVED, logical < final), (LIVE, logical < num_stored)):
        kind[where[mask]] = code
    owner[where] = owners  # the last holder
    owner[where[owner[where] != owners]] = SEVERAL
    return Slots(kind, owner, np.bincount(where, minlength=len(samples)))


def first_logical(pieces: list[Piece], lengths: Ints) -> Ints:
    """The logical slot with which each extent begins."""
    before = np.cumsum(lengths) - lengths
    counts = [len(piece.extents) for piece in pieces]
    heads = np.cumsum(counts) - counts
    offsets: Ints = before[heads] - [piece.position for piece in pieces]
    return before - np.repeat(offsets, counts)


def inside(samples: Ints, extents: Iterable[Extent]) -> Ints:
    """Which samples lie in these extents."""
    return sampled(samples, *columns(extents))[0]


def sampled(samples: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """The samples in each extent, extent by extent, and their number in each."""
    low, high = np.searchsorted(samples, [starts, starts + lengths])
    counts = high - low
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(low - (ends - counts), counts), counts


def columns(rows: Iterable[tuple[int, ...]]) -> Ints:
    """Rows of numbers as columns; no rows are extents."""
    table = np.array(list(rows), int)
    return table.T if len(table) else np.zeros((2, 0), int)


class Raster(NamedTuple):
    """An image, the kinds of slots in it, and whether it shows shared ones."""

    image: Image
    kinds: set[int]
    shared: bool


def raster(trace: MemoryTrace, num_slots: int, look: Callable[[Frame, Ints], Slots], width: int, height: int) -> Raster:
    """width x height pixels of a pool of num_slots slots over the time of the trace, address 0 at the bottom."""
    rows = ((np.arange(height) + 0.5) * num_slots / height).astype(int)
    shown, column_of = np.unique(frame_at(trace, width), return_inverse=True)
    layers = [look(trace.frames[i], rows) for i in shown]
    kind, owner, holders = (np.stack(layer, axis=1)[:, column_of] for layer in zip(*layers, strict=True))
    image = colored(kind, owner, holders > 1)
    if height >= MIN_BLOCK_PIXELS * num_slots / trace.block_size:
        blocks = rows // trace.block_size
        image[1:][blocks[1:] != blocks[:-1]] = 1
    return Raster(image, set(np.unique(kind).tolist()), bool((holders > 1).any()))


def frame_at(trace: MemoryTrace, width: int) -> Ints:
    """The frame for each of `width` equal intervals of time; the first begins with the trace."""
    middles = trace.start_ps + (np.arange(width) + 0.5) * (trace.end_ps - trace.start_ps) / width
    return np.searchsorted([frame.start_ps for frame in trace.frames], middles, side="right") - 1


def rgb(color: str) -> Image:
    """Red, green and blue from 0 to 1."""
    return np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)], np.float32)


def tint(color: Image, share: float) -> Image:
    """`color` mixed with that share of white."""
    return color * (1 - share) + share


def color_of(owners: NDArray[np.int64]) -> Image:
    """The base colour of each owner; white where there is none."""
    table = np.array([*(rgb(color) for color in PALETTE), rgb(SEVERAL_COLOR), rgb("#ffffff")])
    ordinary = owners % len(PALETTE)
    return table[np.where(owners >= 0, ordinary, np.where(owners == SEVERAL, len(PALETTE), len(PALETTE) + 1))]


def colored(kind: NDArray[np.int64], owner: NDArray[np.int64], shared: NDArray[np.bool_]) -> Image:
    """The picture of rows x columns of slots, one pixel each, row 0 at the bottom."""
    rows, columns = np.ogrid[: kind.shape[0], : kind.shape[1]]
    image = color_of(owner)
    for code, share in TINTS.items():
        image[kind == code] = tint(image[kind == code], share)
    for code, color in PLAIN.items():
        image[kind == code] = rgb(color)
    image[(kind == INTERNAL) & ((columns - rows) % 9 < 1)] = rgb(LINES[INTERNAL])
    image[(kind == ROUNDING) & ((columns + rows) % 9 < 1)] = rgb(LINES[ROUNDING])
    image[(kind == CACHED) & ((columns % 7 < 2) & (rows % 7 < 2))] = rgb("#ffffff")
    dots = shared & (kind == LIVE) & ((columns + 4 * (rows // 4 % 2)) % 8 < 2) & (rows % 4 < 2)
    image[dots] = rgb("#ffffff")
    return image
