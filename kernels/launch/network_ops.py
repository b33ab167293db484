"""Launch wrappers of the small operations between a transformer's products: launches that may be repeated."""

from typing import Any

import numpy as np

from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import HALF, Launch, View, check, check_range, pointers

MAX_ROWS = 65_535  # of silu_mul's second grid dimension
CARRIED, GAIN, SHIFT = 2, 3, 4  # indexes of add_norm's vectors among its arguments


def bind_add_norm(y: Any, x: Any, gain: Any, shift: Any = None, carried: Any = None, *, eps: float) -> Launch:
    """x += carried in place; y = LayerNorm of x where there is a shift, else RMSNorm.

    x, y: [num_tokens, hidden]; gain, shift, carried: [hidden], whose pointers may be replaced.
    """
    view = check("x", x, (None, None), HALF, align=16)
    num_tokens, hidden = view.shape
    if hidden % 8:
        raise ValueError(f"x: {hidden} values a token are no multiple of 8")
    check("y", y, view.shape, (view.dtype,), align=16)
    vectors = {"gain": gain, "shift": shift, "carried": carried}
    for name, vector in vectors.items():
        if vector is not None:
            check(name, vector, (hidden,), (view.dtype,), align=16)
    threads = 1024 if hidden > 8192 else min(256, -(-hidden // 8 // 32) * 32)
    constants = {"HIDDEN": hidden, "NUM_THREADS": threads, "SHIFT": int(shift is not None)}
    kernel = load("network.cu", "add_norm", **constants, CARRY=int(carried is not None), BF16=_bf16(view))
    arguments = (*pointers(y, x, carried, gain, shift), np.float32(eps))
    return Launch(kernel, (num_tokens,), (threads,), arguments)


def bind_rotate(q: Any, k: Any, positions: Any, turns: Any) -> Launch:
    """RoPE in place: q, k: [num_tokens, heads, head_size], rows may be strided; positions: int64 [num_tokens].

    turns: float32 [max_len, 2, head_size / 2], the cosines and sines of each position.
    """
    queries = check("q", q, (None, None, None), HALF, strided_dims=1, align=16)
    num_tokens, num_heads, head_size = queries.shape
    keys = check("k", k, (num_tokens, None, head_size), (queries.dtype,), strided_dims=1, align=16)
    check("positions", positions, (num_tokens,), ("int64",))
    check("turns", turns, (None, 2, head_size // 2), ("float32",))
    if head_size % 16:
        raise ValueError(f"q: head size {head_size} is no multiple of 16")
    kernel = load("network.cu", "rotate", HEAD_SIZE=head_size, BF16=_bf16(queries))
    numbers = map(np.int32, (queries.strides[0], keys.strides[0], num_heads, keys.shape[1]))
    return Launch(kernel, (num_tokens,), (256,), (*pointers(q, k, positions, turns), *numbers))


def bind_silu_mul(y: Any, x: Any) -> Launch:
    """y = silu(gate) * up; x: [num_tokens, 2 * ffn], the gate first; y: [num_tokens, ffn]."""
    view = check("x", x, (None, None), HALF, align=16)
    num_tokens, width = view.shape
    check("y", y, (num_tokens, width // 2), (view.dtype,), align=16)
    if width % 16:
        raise ValueError(f"x: {width} values a token are no multiple of 16")
    check_range("x: number of tokens", num_tokens, 0, MAX_ROWS)
    kernel, vectors = load("network.cu", "silu_mul", BF16=_bf16(view)), width // 16
    return Launch(kernel, (-(-vectors // 256), num_tokens), (256,), (*pointers(y, x), np.int32(vectors)))


def _bf16(view: View) -> int:
    return int(view.dtype == "bfloat16")
