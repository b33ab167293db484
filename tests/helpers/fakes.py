"""Arrays that only pretend to lie on a GPU: enough to reach every refusal of a wrapper without one."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


@dataclass
class FakeArray:
    """Shape, strides, type and address, as a CuPy array shows them."""

    shape: tuple[int, ...]
    dtype: Any = "float16"
    element_strides: tuple[int, ...] | None = None
    pointer: int = 1 << 20
    data: Any = field(init=False)
    strides: tuple[int, ...] = field(init=False)
    __cuda_array_interface__: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.dtype = np.dtype(self.dtype)
        dense, strides = 1, []
        for size in reversed(self.shape):
            strides.append(dense)
            dense *= size
        chosen = self.element_strides or tuple(reversed(strides))
        self.strides = tuple(stride * self.dtype.itemsize for stride in chosen)
        self.data = SimpleNamespace(ptr=self.pointer)


def decode_arguments(**changed: Any) -> dict[str, Any]:
    """Valid arguments of paged_decode: 2 sequences, 8 heads over 2 kv heads of 64, 5 blocks of 16."""
    arguments = {
        "out": FakeArray((2, 8, 64)),
        "q": FakeArray((2, 8, 64)),
        "k_cache": FakeArray((5, 2, 16, 64)),
        "v_cache": FakeArray((5, 2, 16, 64)),
        "block_tables": FakeArray((2, 3), "int32"),
        "context_lens": FakeArray((2,), "int32"),
        "max_context_len": 40,
    }
    return arguments | changed
