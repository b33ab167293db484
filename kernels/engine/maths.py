"""The small operations between the matrix products: a plain version in torch, and kernels of one pass each.

Each operation is bound to its buffers once per forward pass and then run for every layer: a launch with checked and
packed arguments takes a tenth of the host time.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, _addmm_activation

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.weights import Affine
from testbed.kernels.launch import network_ops
from testbed.kernels.launch.launch import Launch, stream_pointer
from testbed.kernels.launch.network_ops import CARRIED, GAIN, SHIFT


class Norm(Protocol):
    """Adds the bias `carried` to x, and normalizes x into y: LayerNorm where the norm has a shift, else RMSNorm."""

    def __call__(self, norm: Affine, carried: Tensor | None) -> None: ...


class PlainMaths:
    """The operations in torch. x: the residual stream [num_tokens, hidden], changed in place, never empty."""

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

    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], None]:
        """y = SiLU(gate) * value, where x is gate and value concatenated."""
        gate, value = x.chunk(2, dim=1)

        def multiply() -> None:
            torch.mul(F.silu(gate), value, out=y)

        return multiply


class FusedMaths(PlainMaths):
    """The operations as kernels, on the stream current at the call; the product's kernel includes ReLU."""

    def norm(self, y: Tensor, x: Tensor, eps: float) -> Norm:
        return FusedNorm(y, x, eps)

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Callable[[], None]:
        return partial(network_ops.bind_rotate(q, k, positions, table), stream_pointer(q))

    def relu_product(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        _addmm_activation(bias, x, weight, out=y)

    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], None]:
        return partial(network_ops.bind_silu_mul(y, x), stream_pointer(y))


class FusedNorm:
    """Checks the vectors of the first norm with a carried bias and of the first without; the others are alike."""

    def __init__(self, y: Tensor, x: Tensor, eps: float) -> None:
        self._buffers, self._eps, self._stream = (y, x), eps, stream_pointer(x)
        self._launches: dict[bool, Launch] = {}

    def __call__(self, norm: Affine, carried: Tensor | None) -> None:
        carries = carried is not None
        launch = self._launches.get(carries)
        if launch is None:
            launch = network_ops.bind_add_norm(*self._buffers, norm.weight, norm.bias, carried, eps=self._eps)
            self._launches[carries] = launch
        launch.point(GAIN, norm.weight.data_ptr())
        if norm.bias is not None:
            launch.point(SHIFT, norm.bias.data_ptr())
        if carried is not None:
            launch.point(CARRIED, carried.data_ptr())
        launch(self._stream)


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
    """LLaMA 3.1: low frequencies are divided by `factor`, high ones stay, those between are interpolated."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * rates / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return rates * (share + (1 - share) / scaling["factor"])
