"""Frames as an image: a column of pixels a time, a row a place in the pool."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from experiments.memory_map.colors import Image, colored
from experiments.memory_map.slots import FREE, NOBODY, Slots
from testbed.sim.memory_trace import Frame, MemoryTrace

MIN_BLOCK_PIXELS = 7


def raster(trace: MemoryTrace, num_slots: int, slots_of: Callable[[Frame], Slots], width: int, height: int) -> Image:
    """width x height pixels of a pool of num_slots slots over the time of the trace, address 0 at the bottom."""
    rows = ((np.arange(height) + 0.5) * num_slots / height).astype(int)
    frame_of = frame_at(trace, width)
    shown, column_of = np.unique(frame_of, return_inverse=True)
    layers = [sampled(slots_of(trace.frames[i]), rows) if i >= 0 else nothing(height) for i in shown]
    kind, owner, holders = (np.stack(layer, axis=1)[:, column_of] for layer in zip(*layers, strict=True))
    image = colored(kind, owner, holders > 1)
    if height >= MIN_BLOCK_PIXELS * num_slots / trace.block_size:
        blocks = rows // trace.block_size
        image[1:][blocks[1:] != blocks[:-1]] = 1
    return image


def frame_at(trace: MemoryTrace, width: int) -> NDArray[np.int64]:
    """The frame that each of `width` equal stretches of time shows; -1 before the first."""
    middles = trace.start_ps + (np.arange(width) + 0.5) * (trace.end_ps - trace.start_ps) / width
    return np.searchsorted([frame.start_ps for frame in trace.frames], middles, side="right") - 1


def sampled(slots: Slots, rows: NDArray[np.int64]) -> Slots:
    """The slots at these rows."""
    return Slots(*(column[rows].astype(np.int32) for column in slots))


def nothing(height: int) -> Slots:
    """A column of free slots."""
    return Slots(np.full(height, FREE), np.full(height, NOBODY), np.zeros(height, int))
