"""The interface between a layer and the K and V pools, and its plain version, token by token in torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.engine.layout import Layout, Pools
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.verify.reference import dequantized, full_attention, quantized


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
    """Attention by the kernels' references; for any device, layout and type. windows: of each layer, None for full."""

    def __init__(self, pools: Pools, layout: Layout, windows: tuple[int | None, ...]) -> None:
        self.pools = pools
        self.layout = layout
        self.windows = windows
        self._read: list[list[Tensor]] = []  # of each column and part, rows of K and V
        self._written: list[Tensor] = []  # of each column
        self._new: Tensor = torch.empty(0, dtype=torch.int64)

    def open(self, batch: Ragged) -> None:
        """Compute the rows that every part reads, and the rows of every token that is not stored yet."""
        device, layout = self.pools.device.device, self.layout
        self._starts = batch.query_starts.tolist()
        new = [np.arange(max(part.num_stored, part.written), part.context_len) for part in batch.parts]
        rows = zip(batch.parts, self._starts[:-1], new, strict=True)
        self._new = torch.from_numpy(np.concatenate([at - p.num_stored + first for p, first, at in rows])).to(device)
        self._read, self._written = [], []
        for column in range(layout.num_columns):
            contexts = [
                layout.rows(place, layout.slots(place, np.arange(part.context_len), column))
                for part, place in zip(batch.parts, batch.places, strict=True)
            ]
            written = np.concatenate([found[at] for found, at in zip(contexts, new, strict=True)])
            self._written.append(torch.from_numpy(written).to(device))
            self._read.append([torch.from_numpy(found).to(device) for found in contexts])

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        return lambda layer: self._layer(layer, q, k, v, out)

    def _layer(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        column, caches = self.layout.column_of(layer), self.layout.rows_of(self.pools, layer)
        scales = (None, None) if self.pools.scales is None else self.pools.scales[layer]
        for cache, new, scale in zip(caches, (k, v), scales, strict=True):
            stored = new[self._new]
            cache[self._written[column]] = stored if scale is None else quantized(stored, scale)
        window = self.windows[layer]
        for rows, first, end in zip(self._read[column], self._starts, self._starts[1:], strict=False):
            read = rows if window is None else rows[max(0, len(rows) - (end - first) + 1 - window) :]
            k_read, v_read = (
                cache[read].float() if scale is None else dequantized(cache[read], scale)
                for cache, scale in zip(caches, scales, strict=True)
            )
            out[first:end] = full_attention(q[first:end].float(), k_read, v_read, window=window).to(q.dtype)
