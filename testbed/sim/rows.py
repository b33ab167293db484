"""An append-only table of 64-bit columns: a million rows are a few arrays' worth of memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 4096


class PackedRows:
    """Rows of whole numbers, or of floats in the columns that `floats` names; packed a batch at a time."""

    def __init__(self, *names: str, floats: Sequence[str] = ()) -> None:
        self._dtype = np.dtype([(name, np.float64 if name in floats else np.int64) for name in names])
        self._blocks: list[NDArray[Any]] = []
        self._pending: list[tuple[float, ...]] = []
        self._packed = 0

    def append(self, row: tuple[float, ...]) -> None:
        """Add a row; the values in the order of the columns."""
        self._pending.append(row)
        if len(self._pending) == BATCH:
            self._pack()

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        """Add many rows, column by column."""
        self._pack()
        block = np.empty(len(columns[0]), self._dtype)
        for name, column in zip(self._dtype.names or (), columns, strict=True):
            block[name] = column
        self._blocks.append(block)
        self._packed += len(block)

    def __len__(self) -> int:
        return self._packed + len(self._pending)

    def columns(self) -> dict[str, NDArray[Any]]:
        """A copy of every column by name, in order of appending."""
        self._pack()
        rows = np.concatenate([np.empty(0, self._dtype), *self._blocks])
        return {name: rows[name].copy() for name in self._dtype.names or ()}

    def _pack(self) -> None:
        self._blocks.append(np.array(self._pending, self._dtype))
        self._packed += len(self._pending)
        self._pending.clear()
