"""Pinned host memory of exactly the bytes that are asked for.

torch's and CuPy's allocators of pinned memory round up to the next power of two and keep what they
are given back: 64 MiB and one byte take 128 MiB. They are for small buffers that change often.
"""

import math
from collections.abc import Sequence
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.kernels.launch.compile import require_gpu


def pinned(shape: Sequence[int], dtype: Any) -> Any:
    """An uninitialised torch tensor in host memory of its own (cudaHostAlloc), which is freed with
    it. Raises InputError if the host has too little memory.
    """
    import torch

    num_values = math.prod(shape)
    if not num_values:
        return torch.empty(tuple(shape), dtype=dtype)
    cuda = require_gpu().cuda
    num_bytes = num_values * dtype.itemsize
    try:
        memory = cuda.PinnedMemory(num_bytes)
    except cuda.runtime.CUDARuntimeError as error:
        raise InputError(
            key="server.tiers",
            problem=f"{num_bytes / GIB:.2f} GiB of pinned host memory: {error}",
            remedy="give tiers fewer slots",
        ) from None
    buffer = cuda.PinnedMemoryPointer(memory, 0)
    return torch.frombuffer(buffer, dtype=dtype, count=num_values).view(tuple(shape))
