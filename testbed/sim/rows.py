"""An append-only table of fixed columns, packed: a million rows are a few arrays' worth of memory."""

from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PackedRows:
    """Rows of 64-bit columns. `kinds` gives one letter a column: q for whole numbers, d for floats."""

    def __init__(self, **kinds: str) -> None:
        self._dtype = np.dtype([(name, {"q": np.int64, "d": np.float64}[kind]) for name, kind in kinds.items()])
        self._pack = Struct("=" + "".join(kinds.values())).pack
        self._bytes = bytearray()

    def append(self, *row: float) -> None:
        """Add a row; the values in the order of the columns."""
        self._bytes += self._pack(*row)

    def __len__(self) -> int:
        return len(self._bytes) // self._dtype.itemsize

    def columns(self) -> dict[str, NDArray[Any]]:
        """A copy of every column by name, in order of appending."""
        rows = np.frombuffer(bytes(self._bytes), self._dtype)
        return {name: rows[name].copy() for name in self._dtype.names or ()}
