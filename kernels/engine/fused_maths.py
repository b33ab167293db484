"""The small operations by kernels of one pass each."""

import torch
import torch.nn.functional as F
from torch import Tensor, _addmm_activation

from kernels.engine.maths import Maths
from kernels.engine.weights import Affine
from kernels.launch import network_ops


class FusedMaths(Maths):
    """See Maths; ReLU is part of its product's own kernel."""

    def norm(self, x: Tensor, carried: Tensor | None, norm: Affine, eps: float) -> Tensor:
        """See Maths."""
        y = torch.empty_like(x)
        network_ops.add_norm(y, x, norm.weight, norm.bias, carried, eps=eps)
        return y

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> None:
        """See Maths."""
        network_ops.rotate(q, k, positions, table)

    def activate(self, x: Tensor, up: Affine, gated: bool) -> Tensor:
        """See Maths."""
        if not gated:
            return _addmm_activation(up.bias, x, up.weight.t())
        both = F.linear(x, up.weight, up.bias)
        y = both.new_empty(len(both), both.shape[1] // 2)
        network_ops.silu_mul(y, both)
        return y
