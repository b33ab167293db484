"""Parts that all launch wrappers share: views and checks of torch and CuPy arrays, and launches
with packed arguments.

CuPy's call takes 5 to 10 us of host time for a dozen arguments, a packed launch about 1 us: the
host must launch the hundreds of kernels of a forward pass faster than they run.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.kernels.launch.compile import require_gpu

HALF = ("float16", "bfloat16")
FP8 = ("float8_e4m3fn", "uint8")  # e4m3, in CuPy as bytes
CELL = 8  # bytes; every argument of our kernels fits


@dataclass(frozen=True, slots=True)
class View:
    """The properties of an array that a kernel needs; strides in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    on_gpu: bool

    @property
    def itemsize(self) -> int:
        """Bytes of a cached value."""
        return 1 if self.dtype in FP8 else 2

    @property
    def bf16(self) -> int:
        """1 if values are bfloat16, as a compile-time constant."""
        return int(self.dtype == "bfloat16")


def is_torch(array: Any) -> bool:
    """True if this is a torch tensor, found without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def view(name: str, array: Any) -> View:
    """The view of a torch tensor or a CuPy array, without a copy."""
    if is_torch(array):
        dtype = str(array.dtype).removeprefix("torch.")
        return View(
            pointer=array.data_ptr(),
            shape=tuple(array.shape),
            strides=tuple(array.stride()),
            dtype=dtype,
            on_gpu=array.is_cuda,
        )
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"{name}: expected a torch or CuPy array, got {type(array).__name__}")
    strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
    return View(
        pointer=array.data.ptr,
        shape=tuple(array.shape),
        strides=strides,
        dtype=str(array.dtype),
        on_gpu=True,
    )


def pointers(*arrays: Any) -> list[int]:
    """The addresses of arrays; 0 for None."""
    return [0 if array is None else view("", array).pointer for array in arrays]


def check(
    name: str,
    array: Any,
    shape: Sequence[int | None],
    dtypes: Sequence[str],
    strided_dims: int = 0,
    align: int = 0,
) -> View:
    """The view of an array; raises if a kernel would misread it. None in `shape` allows any
    size.

    The first `strided_dims` dimensions may have any stride that keeps rows aligned; the others must
    be dense.
    """
    v = view(name, array)
    if len(v.shape) != len(shape) or any(
        want not in (None, got) for want, got in zip(shape, v.shape, strict=True)
    ):
        raise ValueError(f"{name}: expected shape {_shape_text(shape)}, got {_shape_text(v.shape)}")
    if v.dtype not in dtypes:
        raise TypeError(f"{name}: expected {' or '.join(dtypes)}, got {v.dtype}")
    if not v.on_gpu:
        raise ValueError(f"{name}: expected an array in GPU memory, got one in host memory")
    dense = 1
    for dim in reversed(range(strided_dims, len(v.shape))):
        if v.shape[dim] != 1 and v.strides[dim] != dense:
            raise ValueError(
                f"{name}: dimension {dim} has stride {v.strides[dim]}, expected {dense} "
                "(contiguous)"
            )
        dense *= v.shape[dim]
    if align and (
        v.pointer % align or any(s * v.itemsize % align for s in v.strides[:strided_dims])
    ):
        raise ValueError(f"{name}: rows must start at multiples of {align} bytes")
    return v


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise ValueError for a number outside low..high."""
    if not low <= value <= high:
        raise ValueError(f"{name}: expected {low} to {high}, got {value}")


def stream_pointer(array: Any) -> int:
    """The address of the current stream: torch's for torch tensors, else CuPy's."""
    if is_torch(array):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return int(require_gpu().cuda.get_current_stream().ptr)


class Launch:
    """A kernel with its grid and arguments. Between launches only pointers may be replaced.

    arguments: Python integers are pointers, NumPy scalars are values.
    """

    __slots__ = ("_addresses", "_arguments", "_cells", "_launch", "_shape")

    def __init__(
        self,
        kernel: Any,
        grid: Sequence[int],
        threads: int,
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> None:
        self._launch = require_gpu().cuda.driver.launchKernel
        self._shape = (kernel.kernel.ptr, *(*map(int, grid), 1, 1)[:3], threads, 1, 1, shared_bytes)
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
        """Launch on a stream, given by its address; the driver copies the arguments during the
        call.
        """
        self._launch(*self._shape, stream, self._arguments, 0)


def at_once(bind: Callable[..., Launch]) -> Callable[..., None]:
    """`bind`, followed by a launch on the caller's current stream; an empty grid is not
    launched.
    """
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


def _shape_text(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
