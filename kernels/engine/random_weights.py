"""Random weights, seeded: the same for a model and for its parts."""

from math import prod
from zlib import crc32

import torch
from torch import Tensor

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.weights import WHOLE, Parts, Weights, Whole, assembled


def random_weights(
    arch: Architecture, seed: int, device: str, dtype: torch.dtype, part: Whole = WHOLE
) -> Weights:
    """Weights of the same shapes: matrices normal by their inputs, gains around 1, biases small.

    A shard has the values of its part of the whole model.
    """
    return assembled(arch, Parts(RandomTensors(seed, device, dtype).of, part, device, dtype))


class RandomTensors:
    """Random tensors, one after another in the same memory."""

    def __init__(self, seed: int, device: str, dtype: torch.dtype) -> None:
        self._seed = seed
        self._memory = torch.empty(0, device=device, dtype=dtype)

    def of(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor with a name of Hugging Face's; its values depend on name, shape and seed."""
        values = self._room_for(shape)
        generator = torch.Generator(values.device).manual_seed(
            self._seed << 32 | crc32(name.encode())
        )
        torch.randn(shape, generator=generator, out=values)
        if "embed" in name:
            return values.mul_(0.5)
        if len(shape) == 2:
            return values.mul_(float(shape[1] ** -0.5))
        return values.mul_(0.05).add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def _room_for(self, shape: tuple[int, ...]) -> Tensor:
        size = prod(shape)
        if size > len(self._memory):
            self._memory = self._memory.new_empty(size)
        return self._memory[:size].view(shape)
