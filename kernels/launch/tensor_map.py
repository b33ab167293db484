"""Descriptions of arrays for Hopper's tensor copies, encoded by the driver."""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

UINT16, NO_INTERLEAVE, SWIZZLE_128, L2_256, ZEROS = 1, 0, 3, 3, 0  # of the driver's CUtensorMap enumerations
MAP_BYTES, MAP_ALIGN = 128, 64


def tensor_map(
    pointer: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> NDArray[np.uint8]:
    """A map of an array of 16-bit values for boxes of 64 in the first dimension, 128-byte swizzled.

    sizes: values a dimension, the dense one first; strides: bytes from one to the next of every further dimension.
    """
    room = np.zeros(MAP_BYTES + MAP_ALIGN, np.uint8)
    at = -room.ctypes.data % MAP_ALIGN
    found = room[at : at + MAP_BYTES]
    rank = len(sizes)
    code = _encode()(
        ctypes.c_void_p(found.ctypes.data), UINT16, rank, ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank),
        NO_INTERLEAVE, SWIZZLE_128, L2_256, ZEROS,
    )  # fmt: skip
    if code:
        raise ValueError(
            f"the driver refuses a tensor map of {sizes} by {strides} bytes in boxes of {box}: error {code}"
        )
    return found


@cache
def _encode() -> "ctypes._NamedFuncPointer":
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
