"""The small operations between the matrix products: a plain version in torch, and kernels of one
pass each.

Each operation is bound to its buffers once per forward pass and then run for every layer: a launch
with checked and packed arguments takes a tenth of the host time.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, _addmm_activation

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.weights import Affine
from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import HALF, Launch, check, check_range, pointers, stream_pointer

MAX_ROWS = 65_535  # of silu_mul's second grid dimension
# Adds the bias `carried` to x, and normalizes x into y: LayerNorm if the norm has a shift, else
# RMSNorm.
Norm = Callable[[Affine, Tensor | None], None]
CARRIED, GAIN, SHIFT = 2, 3, 4  # indexes of add_norm's vectors among its arguments


def bind_add_norm(
    y: Any, x: Any, gain: Any, shift: Any = None, carried: Any = None, *, eps: float
) -> Launch:
    """x += carried in place; y = LayerNorm of x if there is a shift, else RMSNorm.

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
    kernel = load(
        "network.cu", "add_norm", **constants, CARRY=int(carried is not None), BF16=view.bf16
    )
    arguments = (*pointers(y, x, carried, gain, shift), np.float32(eps))
    return Launch(kernel, (num_tokens,), threads, arguments)


def bind_rotate(q: Any, k: Any, positions: Any, turns: Any) -> Launch:
    """RoPE in place: q, k: [num_tokens, heads, head_size], rows may be strided; positions: int64
    [num_tokens].

    turns: float32 [max_len, 2, head_size / 2], the cosines and sines of each position.
    """
    queries = check("q", q, (None, None, None), HALF, strided_dims=1, align=16)
    num_tokens, num_heads, head_size = queries.shape
    keys = check("k", k, (num_tokens, None, head_size), (queries.dtype,), strided_dims=1, align=16)
    check("positions", positions, (num_tokens,), ("int64",))
    check("turns", turns, (None, 2, head_size // 2), ("float32",))
    if head_size % 16:
        raise ValueError(f"q: head size {head_size} is no multiple of 16")
    kernel = load("network.cu", "rotate", HEAD_SIZE=head_size, BF16=queries.bf16)
    numbers = map(np.int32, (queries.strides[0], keys.strides[0], num_heads, keys.shape[1]))
    return Launch(kernel, (num_tokens,), 256, (*pointers(q, k, positions, turns), *numbers))


def bind_silu_mul(y: Any, x: Any) -> Launch:
    """y = silu(gate) * up; x: [num_tokens, 2 * ffn], the gate first; y: [num_tokens, ffn]."""
    view = check("x", x, (None, None), HALF, align=16)
    num_tokens, width = view.shape
    check("y", y, (num_tokens, width // 2), (view.dtype,), align=16)
    if width % 16:
        raise ValueError(f"x: {width} values a token are no multiple of 16")
    check_range("x: number of tokens", num_tokens, 0, MAX_ROWS)
    kernel, vectors = load("network.cu", "silu_mul", BF16=view.bf16), width // 16
    return Launch(
        kernel, (-(-vectors // 256), num_tokens), 256, (*pointers(y, x), np.int32(vectors))
    )


class PlainMaths:
    """The operations in torch. x: the residual stream [num_tokens, hidden], changed in place, never
    empty.
    """

    def norm(self, y: Tensor, x: Tensor, eps: float) -> Norm:
        """Norms of x into y."""

        def normalize(norm: Affine, carried: Tensor | None) -> None:
            if carried is not None:
                x.add_(carried)
            if norm.bias is None:
                y.copy_(F.rms_norm(x, (x.shape[1],), norm.weight, eps))
            else:
                y.copy_(F.layer_norm(x, (x.shape[1],), norm.weight, norm.bias, eps))

        return normalize

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Callable[[], None]:
        """RoPE on q and k in place; `table` by position, [max_len, 2, head_size / 2]."""
        turns = table[positions]

        def turn() -> None:
            rotate(q, turns)
            rotate(k, turns)

        return turn

    def relu_product(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        """y = ReLU(x @ weight + bias)."""
        torch.addmm(bias, x, weight, out=y)
        y.relu_()

    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], object]:
        """y = SiLU(gate) * value, if x is gate and value concatenated."""
        gate, value = x.chunk(2, dim=1)
        return lambda: torch.mul(F.silu(gate), value, out=y)


class FusedMaths(PlainMaths):
    """The operations as kernels, on the stream current at the call; the product's kernel includes
    ReLU.
    """

    def norm(self, y: Tensor, x: Tensor, eps: float) -> Norm:
        """See PlainMaths; the vectors of the first norm with a carried bias and of the first
        without are checked.
        """
        launches, stream = dict[bool, Launch](), stream_pointer(x)

        def normalize(norm: Affine, carried: Tensor | None) -> None:
            launch = launches.get(carried is not None)
            if launch is None:
                launch = bind_add_norm(y, x, norm.weight, norm.bias, carried, eps=eps)
                launches[carried is not None] = launch
            launch.point(GAIN, norm.weight.data_ptr())
            if norm.bias is not None:
                launch.point(SHIFT, norm.bias.data_ptr())
            if carried is not None:
                launch.point(CARRIED, carried.data_ptr())
            launch(stream)

        return normalize

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Callable[[], None]:
        return partial(bind_rotate(q, k, positions, table), stream_pointer(q))

    def relu_product(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        _addmm_activation(bias, x, weight, out=y)

    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], object]:
        return partial(bind_silu_mul(y, x), stream_pointer(y))


def rotary_table(arch: Architecture, device: str) -> Tensor:
    """Cosines and sines by position, fp32 [max_len, 2, head_size / 2]."""
    size = arch.spec.head_size
    rates = arch.rope_theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    if arch.rope_scaling is not None:
        rates = _stretched(rates, arch.rope_scaling)
    angles = torch.arange(arch.spec.max_len, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()], dim=1).float().to(device)


def rotate(x: Tensor, turns: Tensor) -> None:
    """Rotate x [num_tokens, heads, head_size] in place by turns [num_tokens, 2, head_size / 2]."""
    cos, sin = turns[:, None, 0], turns[:, None, 1]
    first, second = x.float().chunk(2, dim=2)
    x.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=2))


def _stretched(rates: Tensor, scaling: Mapping[str, float]) -> Tensor:
    """LLaMA 3.1: low frequencies are divided by `factor`, high ones stay, those between are
    interpolated.
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * rates / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return rates * (share + (1 - share) / scaling["factor"])
