"""An append-only table of 64-bit columns: a million rows are a few arrays' worth of memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BATCH = 512  # what waits to be packed fits the caches, and stays young for the garbage collector


class PackedRows:
    """Rows of whole numbers, or of floats in the columns that `floats` names; packed a batch at a time."""

    def __init__(self, *names: str, floats: Sequence[str] = ()) -> None:
        self._types = {name: np.dtype(np.float64 if name in floats else np.int64) for name in names}
        self._blocks: list[list[NDArray[Any]]] = []
        self._pending: list[tuple[float, ...]] = []
        self._packed = 0

    def append(self, row: tuple[float, ...]) -> None:
        """Add a row; the values in the order of the columns."""
        self._pending.append(row)
        if len(self._pending) == BATCH:
            self._pack()

    def extend(self, columns: Sequence[ArrayLike]) -> None:
        """Add many rows, column by column."""
        self._pack()
        block = [packed(column, kind) for column, kind in zip(columns, self._types.values(), strict=True)]
        self._blocks.append(block)
        self._packed += len(block[0])

    def __len__(self) -> int:
        return self._packed + len(self._pending)

    def columns(self) -> dict[str, NDArray[Any]]:
        """A copy of every column by name, in order of appending."""
        self._pack()
        blocks = [[np.empty(0, kind) for kind in self._types.values()], *self._blocks]
        return dict(zip(self._types, map(np.concatenate, zip(*blocks, strict=True)), strict=True))

    def _pack(self) -> None:
        if self._pending:
            rows, self._pending = self._pending, []
            self.extend(list(zip(*rows, strict=True)))


def packed(column: ArrayLike, kind: np.dtype[Any]) -> NDArray[Any]:
    """A copy of a column; where all its values are the same one, it takes the memory of one."""
    values = np.array(column, kind)
    same = len(values) > 0 and bool((values == values[0]).all())
    return np.broadcast_to(values[:1].copy(), len(values)) if same else values
