"""The small operations between the matrix products, plainly in torch; `fused_maths` does the same by kernels.

Each is bound to its buffers once in a forward pass and then done for every layer: a launch that is checked and packed
already takes a tenth of the host's time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.engine.rotary import rotate
from kernels.engine.weights import Affine


class Norm(Protocol):
    """Adds the bias `carried` to x, and normalizes x into y: LayerNorm where the norm has a shift, else RMSNorm."""

    def __call__(self, norm: Affine, carried: Tensor | None) -> None: ...


class Maths(ABC):
    """x: the residual stream [num_tokens, hidden], changed in place; at least one token."""

    @abstractmethod
    def norm(self, y: Tensor, x: Tensor, eps: float) -> Norm:
        """Norms of x into y."""

    @abstractmethod
    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Callable[[], None]:
        """RoPE on q and k in place; `table` by position, [max_len, 2, head_size / 2]."""

    @abstractmethod
    def relu_product(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        """y = ReLU(x @ weight + bias)."""

    @abstractmethod
    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], None]:
        """y = SiLU(gate) * value, of x = gate and value side by side."""


class PlainMaths(Maths):
    """One torch call after the other."""

    def norm(self, y: Tensor, x: Tensor, eps: float) -> Norm:
        """See Maths."""

        def normalize(norm: Affine, carried: Tensor | None) -> None:
            if carried is not None:
                x.add_(carried)
            if norm.bias is None:
                y.copy_(F.rms_norm(x, (x.shape[1],), norm.weight, eps))
            else:
                y.copy_(F.layer_norm(x, (x.shape[1],), norm.weight, norm.bias, eps))

        return normalize

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Callable[[], None]:
        """See Maths."""
        turns = table[positions]

        def turn() -> None:
            rotate(q, turns)
            rotate(k, turns)

        return turn

    def relu_product(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        """See Maths."""
        torch.addmm(bias, x, weight, out=y)
        y.relu_()

    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], None]:
        """See Maths."""
        gate, value = x.chunk(2, dim=1)

        def multiply() -> None:
            torch.mul(F.silu(gate), value, out=y)

        return multiply
