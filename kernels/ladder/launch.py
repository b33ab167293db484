"""How the ladder's kernels are compiled and launched: a source beside this file, its constants, its arguments."""

from typing import Any

import numpy as np
from torch import Tensor

from kernels.launch import arrays
from kernels.launch.attention import Shapes
from kernels.launch.compile import load

THREADS = 128  # of every thread block in the ladder


def constants(s: Shapes) -> dict[str, int]:
    """What every source of the ladder is compiled for."""
    return {**s.defines, "BLOCK_SIZE": s.block_size}


def launch(source: str, name: str, s: Shapes, grid: tuple[int, ...], *arguments: Any) -> None:
    """Kernel `name` of a source on the caller's stream; tensors go by their address, numbers as 32 bits."""
    kernel = load(f"../ladder/{source}", name, **constants(s))
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    with arrays.stream_of(tensors[0]):
        kernel(grid, (THREADS,), tuple(_raw(a) for a in arguments))


def _raw(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return np.float32(argument) if isinstance(argument, float) else np.int32(argument)
