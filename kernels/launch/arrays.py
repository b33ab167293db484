"""Views of torch and CuPy arrays without a copy, and the checks that the launch wrappers share."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.kernels.launch.compile import require_gpu

HALF = ("float16", "bfloat16")
FP8 = ("float8_e4m3fn", "uint8")  # e4m3, in CuPy as bytes


@dataclass(frozen=True, slots=True)
class View:
    """The properties of an array that a kernel needs: address, shape, strides in elements, element type."""

    name: str
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    on_gpu: bool

    @property
    def itemsize(self) -> int:
        """Bytes of a cached value."""
        return 1 if self.dtype in FP8 else 2


def is_torch(array: Any) -> bool:
    """Whether this is a torch tensor, found without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def view(name: str, array: Any) -> View:
    """The view of an array: torch tensors and CuPy arrays directly, other arrays through DLPack."""
    if is_torch(array):
        return View(
            name,
            array.data_ptr(),
            tuple(array.shape),
            tuple(array.stride()),
            str(array.dtype).removeprefix("torch."),
            array.is_cuda,
        )
    if not hasattr(array, "__cuda_array_interface__"):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{name}: expected a torch or CuPy array, got {type(array).__name__}")
        if array.__dlpack_device__()[0] != 2:  # kDLCUDA
            return View(name, 0, tuple(array.shape), (), str(array.dtype), False)
        array = require_gpu().from_dlpack(array)
    strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
    return View(name, array.data.ptr, tuple(array.shape), strides, str(array.dtype), True)


def check(v: View, shape: Sequence[int | None], dtypes: Sequence[str], strided_dims: int = 0, align: int = 0) -> View:
    """Raise for an array that a kernel would misread; None in `shape` allows any size.

    The first `strided_dims` dimensions may have any stride that keeps rows aligned; the others must be dense.
    """
    if len(v.shape) != len(shape) or any(want not in (None, got) for want, got in zip(shape, v.shape, strict=True)):
        raise ValueError(f"{v.name}: expected shape {_shape_text(shape)}, got {_shape_text(v.shape)}")
    if v.dtype not in dtypes:
        raise TypeError(f"{v.name}: expected {' or '.join(dtypes)}, got {v.dtype}")
    if not v.on_gpu:
        raise ValueError(f"{v.name}: expected an array in GPU memory, got one in host memory")
    dense = 1
    for dim in reversed(range(strided_dims, len(v.shape))):
        if v.shape[dim] != 1 and v.strides[dim] != dense:
            raise ValueError(f"{v.name}: dimension {dim} has stride {v.strides[dim]}, expected {dense} (contiguous)")
        dense *= v.shape[dim]
    if align and (v.pointer % align or any(s * v.itemsize % align for s in v.strides[:strided_dims])):
        raise ValueError(f"{v.name}: rows must start at multiples of {align} bytes")
    return v


def check_range(name: str, value: int, low: int, high: int) -> int:
    """Raise ValueError for a number outside low..high."""
    if not low <= value <= high:
        raise ValueError(f"{name}: expected {low} to {high}, got {value}")
    return value


def stream_pointer(array: Any) -> int:
    """The address of the current stream: torch's for torch tensors, else CuPy's."""
    if is_torch(array):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return int(require_gpu().cuda.get_current_stream().ptr)


def _shape_text(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
