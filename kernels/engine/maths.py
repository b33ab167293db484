"""The small operations between the matrix products, plainly in torch; `fused` does the same by kernels."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.engine.rotary import rotate
from kernels.engine.weights import Affine


class Maths(ABC):
    """x: the residual stream [num_tokens, hidden], changed in place."""

    @abstractmethod
    def norm(self, x: Tensor, carried: Tensor | None, norm: Affine, eps: float) -> Tensor:
        """Adds the bias `carried` to x, and normalizes: LayerNorm where the norm has a shift, else RMSNorm."""

    @abstractmethod
    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> None:
        """RoPE on q and k in place; `table` by position, [max_len, 2, head_size / 2]."""

    @abstractmethod
    def activate(self, x: Tensor, up: Affine, gated: bool) -> Tensor:
        """The first product of the feed-forward part with what follows it: SwiGLU where gated, else ReLU."""


class PlainMaths(Maths):
    """One torch call after the other."""

    def norm(self, x: Tensor, carried: Tensor | None, norm: Affine, eps: float) -> Tensor:
        """See Maths."""
        if carried is not None:
            x += carried
        if norm.bias is None:
            return F.rms_norm(x, (x.shape[1],), norm.weight, eps)
        return F.layer_norm(x, (x.shape[1],), norm.weight, norm.bias, eps)

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> None:
        """See Maths."""
        turns = table[positions]
        rotate(q, turns)
        rotate(k, turns)

    def activate(self, x: Tensor, up: Affine, gated: bool) -> Tensor:
        """See Maths."""
        y = F.linear(x, up.weight, up.bias)
        if not gated:
            return torch.relu_(y)
        gate, value = y.chunk(2, dim=1)
        return F.silu(gate) * value
