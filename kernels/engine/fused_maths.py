"""The small operations by kernels of one pass each."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, _addmm_activation

from kernels.engine.maths import Maths, Norm
from kernels.engine.weights import Affine
from kernels.launch import network_ops
from kernels.launch.arrays import stream_pointer
from kernels.launch.launch import Launch
from kernels.launch.network_ops import CARRIED, GAIN, SHIFT


class FusedMaths(Maths):
    """See Maths; ReLU is part of its product's own kernel. What is bound runs on the stream of that moment."""

    def norm(self, y: Tensor, x: Tensor, eps: float) -> Norm:
        """See Maths."""
        return FusedNorm(y, x, eps)

    def turn(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor) -> Callable[[], None]:
        """See Maths."""
        return partial(network_ops.bind_rotate(q, k, positions, table), stream_pointer(q))

    def relu_product(self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
        """See Maths."""
        _addmm_activation(bias, x, weight, out=y)

    def silu_mul(self, y: Tensor, x: Tensor) -> Callable[[], None]:
        """See Maths."""
        return partial(network_ops.bind_silu_mul(y, x), stream_pointer(y))


class FusedNorm:
    """Checks the vectors of the first norm that carries a bias and of the first that does not; others look alike."""

    def __init__(self, y: Tensor, x: Tensor, eps: float) -> None:
        self._buffers, self._eps, self._stream = (y, x), eps, stream_pointer(x)
        self._launches: dict[bool, Launch] = {}

    def __call__(self, norm: Affine, carried: Tensor | None) -> None:
        """See Norm."""
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
