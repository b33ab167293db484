"""Where the slots that a policy names lie in memory: in blocks, or in one extent a sequence.

Memory is seen as rows of one head's values. Blocks lie [num_kv_heads, block_size, head_size] each, extents
[num_kv_heads, length, head_size]: what the paged and the contiguous kernels read.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import PlugInError
from testbed.core.slots import Extent

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Place:
    """A sequence's table as a kernel reads it: `ids` are block ids, or the first slot and the length of an extent."""

    ids: Ints
    num_slots: int


class Layout(ABC):
    """Turns tables into places, and positions of a place into slots and rows."""

    block_size: int

    def __init__(self, num_kv_heads: int) -> None:
        self.num_kv_heads = num_kv_heads

    @abstractmethod
    def place(self, table: list[Extent], owner: object) -> Place:
        """A table as a place; `owner` is for the message where it is no table for these kernels."""

    @abstractmethod
    def slots(self, place: Place, positions: Ints) -> Ints:
        """The slots of a sequence's tokens at `positions`."""

    @abstractmethod
    def rows(self, place: Place, slots: Ints) -> Ints:
        """The rows of these slots of a place, [num_slots, num_kv_heads]."""


class Blocks(Layout):
    """Blocks of block_size slots; an extent may be several blocks in a row."""

    def __init__(self, num_kv_heads: int, block_size: int) -> None:
        super().__init__(num_kv_heads)
        self.block_size = block_size

    def place(self, table: list[Extent], owner: object) -> Place:
        size = self.block_size
        if any(start % size or length % size for start, length in table):
            raise PlugInError(
                f"the table of {owner} has extents that are no whole blocks of {size} slots: {table}; say block_size=1"
            )
        runs = [range(start // size, (start + length) // size) for start, length in table]
        ids = np.array([block for run in runs for block in run], np.int64)
        return Place(ids, len(ids) * size)

    def slots(self, place: Place, positions: Ints) -> Ints:
        blocks, offsets = np.divmod(positions, self.block_size)
        return place.ids[blocks] * self.block_size + offsets

    def rows(self, place: Place, slots: Ints) -> Ints:
        blocks, offsets = np.divmod(slots, self.block_size)
        heads = np.arange(self.num_kv_heads)
        return (blocks[:, None] * self.num_kv_heads + heads) * self.block_size + offsets[:, None]


class Extents(Layout):
    """One extent a sequence, as FasterTransformer keeps it."""

    block_size = 1

    def place(self, table: list[Extent], owner: object) -> Place:
        if len(table) != 1:
            raise PlugInError(f"the table of {owner} is {table}; the contiguous kernels read one extent a sequence")
        return Place(np.array(table[0], np.int64), table[0].length)

    def slots(self, place: Place, positions: Ints) -> Ints:
        return place.ids[0] + positions

    def rows(self, place: Place, slots: Ints) -> Ints:
        first, length = place.ids
        heads = first * self.num_kv_heads + np.arange(self.num_kv_heads) * length
        return heads + (slots - first)[:, None]
