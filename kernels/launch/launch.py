"""A launch whose arguments are checked and packed already: what is left is one call into the driver.

CuPy's own call takes 5 to 10 us of host time for a dozen arguments, this about 1: it matters where a forward pass of
hundreds of launches must be ordered faster than it runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.launch.compile import require_gpu

CELL = 8  # bytes; every argument of our kernels fits


class Launch:
    """A kernel with its grid and arguments. Pointers may be replaced between launches, nothing else changes.

    arguments: Python integers are pointers, NumPy scalars are themselves.
    """

    __slots__ = ("_addresses", "_arguments", "_cells", "_launch", "_shape")

    def __init__(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        self._launch = require_gpu().cuda.driver.launchKernel
        self._shape = (kernel.kernel.ptr, *three(grid), *three(block), shared_bytes)
        self._cells = packed(arguments)
        first = self._cells.ctypes.data
        self._addresses = np.arange(first, first + CELL * len(self._cells), CELL, np.uint64)
        self._arguments = int(self._addresses.ctypes.data)

    def point(self, place: int, pointer: int) -> None:
        """The argument at `place`, which must be a pointer, is another from the next launch on."""
        self._cells[place] = pointer

    def __call__(self, stream: int) -> None:
        """Order it on a stream, given by its address; the driver copies the arguments at once."""
        self._launch(*self._shape, stream, self._arguments, 0)


def packed(arguments: Sequence[Any]) -> NDArray[np.uint64]:
    """Arguments in cells of 8 bytes, each in the lower bytes of its own."""
    cells = np.zeros(len(arguments), np.uint64)
    for cell, argument in zip(cells.view(np.uint8).reshape(-1, CELL), arguments, strict=True):
        value = np.asarray(argument if isinstance(argument, np.generic) else np.uint64(argument))
        cell[: value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
    return cells


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """A grid or block in all three dimensions."""
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z
