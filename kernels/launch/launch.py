"""A launch with checked and packed arguments, which needs only one call of the driver.

CuPy's call takes 5 to 10 us of host time for a dozen arguments, this one about 1 us: the host must launch the hundreds
of kernels of a forward pass faster than they run.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.kernels.launch.arrays import stream_pointer
from testbed.kernels.launch.compile import require_gpu

CELL = 8  # bytes; every argument of our kernels fits


class Launch:
    """A kernel with its grid and arguments. Between launches only pointers may be replaced.

    arguments: Python integers are pointers, NumPy scalars are values.
    """

    __slots__ = ("_addresses", "_arguments", "_cells", "_launch", "_shape")

    def __init__(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        self._launch = require_gpu().cuda.driver.launchKernel
        self._shape = (kernel.kernel.ptr, *three(grid), *three(block), shared_bytes)
        self._cells = packed(arguments)
        first = self._cells.ctypes.data
        self._addresses = np.array(range(first, first + CELL * len(self._cells), CELL), np.uint64)
        self._arguments = int(self._addresses.ctypes.data)

    @property
    def threads(self) -> int:
        """Threads of the whole grid."""
        return math.prod(self._shape[1:7])

    def point(self, place: int, pointer: int) -> None:
        """Replace the argument at index `place`, which must be a pointer, for later launches."""
        self._cells[place] = pointer

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its address; the driver copies the arguments during the call."""
        self._launch(*self._shape, stream, self._arguments, 0)


def at_once(bind: Callable[..., Launch]) -> Callable[..., None]:
    """`bind`, followed by a launch on the caller's current stream; an empty grid is not launched."""
    first = next(iter(signature(bind).parameters))

    @wraps(bind)
    def launch(*arguments: Any, **options: Any) -> None:
        bound = bind(*arguments, **options)
        if bound.threads:
            bound(stream_pointer(arguments[0] if arguments else options[first]))

    return launch


def packed(arguments: Sequence[Any]) -> NDArray[np.uint64]:
    """Arguments in cells of 8 bytes, each in the lower bytes of its cell."""
    cells = np.zeros(len(arguments), np.uint64)
    for cell, argument in zip(cells.view(np.uint8).reshape(-1, CELL), arguments, strict=True):
        value = np.asarray(argument if isinstance(argument, np.generic) else np.uint64(argument))
        cell[: value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
    return cells


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """A grid or block in all three dimensions."""
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z
