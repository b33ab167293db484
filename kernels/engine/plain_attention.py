"""The interface between a layer and the K and V pools, and its plain version, token by token in torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.engine.layout import Layout, Pools
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.verify.reference import full_attention


class Attention(ABC):
    """Writes the new K and V of an iteration to their slots and attends to all stored tokens, layer by layer."""

    @abstractmethod
    def open(self, batch: Ragged) -> None:
        """Prepare for the layers of this iteration."""

    @abstractmethod
    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        """A function of the layer number that fills `out`, to be called when q, k and v contain the layer's values.

        q, out: [num_tokens, num_heads, head_size]; k, v: [num_tokens, kv heads, head_size].
        """


class PlainAttention(Attention):
    """Attention by the kernels' references; for any device, layout and type."""

    def __init__(self, pools: Pools, layout: Layout) -> None:
        self.pools = pools
        self.layout = layout
        self._contexts: list[Tensor] = []
        self._written: Tensor = torch.empty(0, dtype=torch.int64)
        self._new: Tensor = torch.empty(0, dtype=torch.int64)

    def open(self, batch: Ragged) -> None:
        """Compute the rows that every part reads, and the rows of every token that is not stored yet."""
        device, layout = self.pools.device.device, self.layout
        self._starts = batch.query_starts.tolist()
        contexts = [
            layout.rows(place, layout.slots(place, np.arange(part.context_len)))
            for part, place in zip(batch.parts, batch.places, strict=True)
        ]
        new = [np.arange(max(part.num_stored, part.written), part.context_len) for part in batch.parts]
        rows = zip(batch.parts, contexts, self._starts[:-1], new, strict=True)
        self._new = torch.from_numpy(np.concatenate([at - p.num_stored + first for p, _, first, at in rows])).to(device)
        written = [rows[at] for rows, at in zip(contexts, new, strict=True)]
        self._written = torch.from_numpy(np.concatenate(written)).to(device)
        self._contexts = [torch.from_numpy(rows).to(device) for rows in contexts]

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        return lambda layer: self._layer(layer, q, k, v, out)

    def _layer(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        keys, values = self.pools.rows(layer)
        keys[self._written], values[self._written] = k[self._new], v[self._new]
        for rows, first, end in zip(self._contexts, self._starts, self._starts[1:], strict=False):
            out[first:end] = full_attention(q[first:end].float(), keys[rows].float(), values[rows].float()).to(q.dtype)
