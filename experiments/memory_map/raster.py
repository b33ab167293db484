"""Frames as an image: a column of pixels a time, a row a place in the pool."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from experiments.memory_map.colors import Image, colored
from experiments.memory_map.slot_grid import Ints, Slots
from testbed.sim.memory_trace import Frame, MemoryTrace

MIN_BLOCK_PIXELS = 7
Look = Callable[[Frame, Ints], Slots]


class Raster(NamedTuple):
    """An image, the kinds of slots in it, and whether it shows shared ones."""

    image: Image
    kinds: set[int]
    shared: bool


def raster(trace: MemoryTrace, num_slots: int, look: Look, width: int, height: int) -> Raster:
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
    """The frame that each of `width` equal stretches of time shows; the first one begins with the trace."""
    middles = trace.start_ps + (np.arange(width) + 0.5) * (trace.end_ps - trace.start_ps) / width
    return np.searchsorted([frame.start_ps for frame in trace.frames], middles, side="right") - 1
