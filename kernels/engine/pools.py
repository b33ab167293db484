"""The K and V pools: one plane for each layer's K and one for its V, on the device, and the same on the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from testbed.core.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class Pools:
    """device: [2 * num_layers, num_slots * num_kv_heads * head_size], K and V of a layer one after the other.

    host: [num_host_blocks, 2 * num_layers, block_size * num_kv_heads * head_size], pinned where there is a GPU.
    """

    device: Tensor
    host: Tensor
    spec: ModelSpec

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's K and V as rows of one head's values."""
        size = self.spec.head_size
        return self.device[2 * layer].view(-1, size), self.device[2 * layer + 1].view(-1, size)

    def all_rows(self) -> Tensor:
        """All planes as rows, [num_planes, num_rows, head_size]."""
        return self.device.view(self.device.shape[0], -1, self.spec.head_size)

    def blocks(self, block_size: int) -> Tensor:
        """All planes as blocks, [num_planes, num_blocks, num_kv_heads, block_size, head_size]."""
        return self.device.view(self.device.shape[0], -1, self.spec.num_kv_heads, block_size, self.spec.head_size)

    def host_blocks(self, block_size: int) -> Tensor:
        """The host's pool as blocks, [num_blocks, num_planes, num_kv_heads, block_size, head_size]."""
        s = self.spec
        return self.host.view(len(self.host), -1, s.num_kv_heads, block_size, s.head_size)


def make_pools(
    spec: ModelSpec, num_slots: int, num_host_slots: int, block_size: int, device: str, dtype: torch.dtype
) -> Pools:
    """Empty pools of so many slots each, cut to whole blocks."""
    planes, width = 2 * spec.num_layers, spec.num_kv_heads * spec.head_size
    whole = num_slots // block_size * block_size
    pinned = device != "cpu" and num_host_slots > 0
    host = torch.empty((num_host_slots // block_size, planes, block_size * width), dtype=dtype, pin_memory=pinned)
    return Pools(torch.zeros((planes, whole * width), dtype=dtype, device=device), host, spec)
