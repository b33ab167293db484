"""Append-only tables of 64-bit columns."""

from collections.abc import Iterator, Sequence
from numbers import Integral
from struct import error as PackError
from struct import pack
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import PS

Counts: TypeAlias = NDArray[np.int64]
BLOCKS_AT_ONCE = 32  # of a table that is read in parts
NARROW = ((16, np.int16), (32, np.int32))
BATCH = 1024  # rows buffered before packing: small enough for an L2 cache of 1 MiB


class PackedRows:
    """An append-only table of 64-bit columns, packed a batch at a time."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._blocks: list[list[NDArray[Any]]] = []
        self._width = len(names)
        self._pending: list[int] = []  # the numbers of rows, one row after another
        self._packed = 0

    def append(self, row: tuple[int, ...]) -> None:
        pending = self._pending
        pending += row
        if len(pending) == BATCH * self._width:
            self._pack()

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        self._pack()
        self._blocks.append(list(map(compact, columns)))
        self._packed += len(columns[0])

    def __len__(self) -> int:
        return self._packed + len(self._pending) // self._width

    def columns(self) -> dict[str, NDArray[Any]]:
        """A copy of every column by name, in order of appending."""
        return self.some(*self._names)

    def some(self, *names: str) -> dict[str, NDArray[Any]]:
        """A copy of these columns."""
        self._pack()
        empty, places = np.empty(0, np.int64), map(self._names.index, names)
        return {
            name: np.concatenate([empty, *[block[place] for block in self._blocks]])
            for name, place in zip(names, places, strict=True)
        }

    def in_parts(self, *names: str) -> Iterator[dict[str, NDArray[Any]]]:
        """A copy of these columns, some rows at a time; at least one part, which may be empty."""
        self._pack()
        places, empty = [*map(self._names.index, names)], np.empty(0, np.int64)
        for start in range(0, max(len(self._blocks), 1), BLOCKS_AT_ONCE):
            blocks = self._blocks[start : start + BLOCKS_AT_ONCE]
            columns = [
                np.concatenate([empty, *[block[place] for block in blocks]]) for place in places
            ]
            yield dict(zip(names, columns, strict=True))

    def columns_in_parts(self) -> Iterator[dict[str, NDArray[Any]]]:
        """`columns`, some rows at a time."""
        return self.in_parts(*self._names)

    def _pack(self) -> None:
        if self._pending:
            numbers, self._pending = self._pending, []
            self.extend([*packed(numbers, self._width)])


def packed(numbers: Sequence[int], width: int) -> Counts:
    """The numbers of rows, one row of `width` numbers after another, as 64 bits; a row of the
    result for each column. Raises InputError for a time in ps that needs more, and TypeError for
    what is no whole number.
    """
    try:
        flat = np.frombuffer(pack(f"{len(numbers)}q", *numbers), np.int64)
    except PackError as error:  # time is counted in picoseconds, and nothing else comes near
        if all(isinstance(number, Integral) for number in numbers):
            raise beyond_time(max(numbers, key=abs)) from error
        raise TypeError("a row has parts of numbers") from error
    return np.ascontiguousarray(flat.reshape(-1, width).T)


def beyond_time(time_ps: int) -> InputError:
    """The error for a time that no recorder can store."""
    return InputError(
        key="the run",
        problem=(
            f"reaches {time_ps / PS:,.6g} s, and 64 bits count picoseconds up to "
            f"{(1 << 63) / PS:,.0f} s"
        ),
        remedy="shorten the trace, or check costs and hardware",
    )


def compact(values: NDArray[Any]) -> NDArray[Any]:
    """The column; if all its values are the same one, it takes the memory of one, and whole
    numbers that 16 or 32 bits hold take no more.
    """
    if (values == values[0]).all():
        return np.broadcast_to(values[:1].copy(), len(values))
    if values.dtype == np.int64:
        largest = max(-int(values.min()), int(values.max()))
        for bits, narrow in NARROW:
            if largest < 1 << (bits - 1):
                return values.astype(narrow)
    return values if values.base is None else values.copy()
