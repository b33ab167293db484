"""Append-only tables of 64-bit columns."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import PS

Counts: TypeAlias = NDArray[np.int64]
BATCH = 512  # rows buffered before packing: small enough for the L2 cache and GC generation 0


class PackedRows:
    """An append-only table of 64-bit columns, packed a batch at a time."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._blocks: list[list[NDArray[Any]]] = []
        self._pending: list[tuple[int, ...]] = []
        self._packed = 0

    def append(self, row: tuple[int, ...]) -> None:
        self._pending.append(row)
        if len(self._pending) == BATCH:
            self._pack()

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        self._pack()
        self._blocks.append(list(map(compact, columns)))
        self._packed += len(columns[0])

    def __len__(self) -> int:
        return self._packed + len(self._pending)

    def columns(self) -> dict[str, NDArray[Any]]:
        """A copy of every column by name, in order of appending."""
        return self.some(*self._names)

    def some(self, *names: str) -> dict[str, NDArray[Any]]:
        """A copy of these columns."""
        self._pack()
        empty, places = np.empty(0, np.int64), map(self._names.index, names)
        return {
            name: joined([empty, *[block[place] for block in self._blocks]])
            for name, place in zip(names, places, strict=True)
        }

    def _pack(self) -> None:
        if self._pending:
            rows, self._pending = self._pending, []
            self.extend([*map(packed, zip(*rows, strict=True))])


def packed(column: tuple[int, ...]) -> Counts:
    """The numbers as a column of 64 bits. Raises InputError for a time in ps that needs more."""
    try:
        return np.fromiter(column, np.int64, len(column))
    except OverflowError as error:  # time is counted in picoseconds, and nothing else comes near
        raise beyond_time(max(column, key=abs)) from error


def beyond_time(time_ps: int) -> InputError:
    """What to raise for a time that no recorder can write down."""
    return InputError(
        key="the run",
        problem=(
            f"reaches {time_ps / PS:,.6g} s, and 64 bits count picoseconds up to "
            f"{(1 << 63) / PS:,.0f} s"
        ),
        remedy="shorten the trace, or check costs and hardware",
    )


def compact(values: NDArray[Any]) -> NDArray[Any]:
    """The column; where all its values are the same one, it takes the memory of one, and whole
    numbers that 32 bits hold take no more.
    """
    if (values == values[0]).all():
        return np.broadcast_to(values[:1].copy(), len(values))
    if values.dtype == np.int64 and max(-int(values.min()), int(values.max())) < 1 << 31:
        return values.astype(np.int32)
    return values if values.base is None else values.copy()


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The parts of a column, as `compact` has left them, behind each other."""
    column = np.concatenate(parts)
    return column.astype(np.int64) if column.dtype == np.int32 else column
