"""The small operations by kernels of one pass each."""

from torch import Tensor, _addmm_activation

from kernels.engine.maths import PlainMaths
from kernels.engine.weights import Affine


class FusedMaths(PlainMaths):
    """What has a kernel; the rest as it is."""

    def activate(self, x: Tensor, up: Affine, gated: bool) -> Tensor:
        """ReLU is part of the product's own kernel."""
        if gated:
            return super().activate(x, up, gated)
        return _addmm_activation(up.bias, x, up.weight.t())
