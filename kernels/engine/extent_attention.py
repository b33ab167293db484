"""Attention by the contiguous kernels: one extent a sequence, as FasterTransformer keeps it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.engine.cuda_attention import SKIP, CudaAttention, Shapes
from kernels.engine.layout import Ints, Layout, Place
from kernels.engine.pools import Pools
from kernels.engine.ragged import Ragged
from kernels.launch.attention import contiguous_decode
from kernels.launch.cache_ops import write_cache
from kernels.launch.prefill_attention import paged_prefill


class ExtentAttention(CudaAttention):
    """One extent a sequence, laid out [num_kv_heads, length, head_size].

    Decodes run on the contiguous kernel. For prompts, each kv head of a sequence is a sequence of its own, with its
    rows as blocks of one slot: so the paged prefill kernel reads an extent in place.
    """

    def __init__(self, pools: Pools, layout: Layout) -> None:
        super().__init__(pools, layout)
        self.kv_heads, size = pools.spec.num_kv_heads, pools.spec.head_size
        self._rows = pools.all_rows().view(len(pools.device), -1, 1, 1, size)
        self._slots = pools.device.view(len(pools.device), -1, self.kv_heads, size)

    def arrays(self, batch: Ragged) -> dict[str, Ints]:
        """See CudaAttention."""
        n, heads = batch.num_prompts, np.arange(self.kv_heads)
        extents = np.array([place.ids for place in batch.places], np.int32).reshape(-1, 2)
        first_rows = extents[:n, 0] * self.kv_heads + heads[:, None] * extents[:n, 1]  # [kv heads, prompts]
        starts = heads[:, None] * batch.num_prompt_tokens + batch.query_starts[:n]
        ends = [self.kv_heads * batch.num_prompt_tokens]
        contexts = [part.context_len for part in batch.parts[:n]]
        return {
            "extents": extents[n:],
            "first_rows": first_rows.astype(np.int32).reshape(-1, 1),
            "head_starts": np.concatenate([starts.ravel(), ends]).astype(np.int32),
            "head_contexts": np.tile(contexts, self.kv_heads).astype(np.int32),
            "rows": written_rows(batch, self.layout),
        }

    def decode_shapes(self, num_seqs: int, longest: int) -> Shapes:
        """See CudaAttention."""
        return {
            "rows": ((num_seqs * self.kv_heads,), np.int64),
            "extents": ((num_seqs, 2), np.int32),
            "decode_contexts": ((num_seqs,), np.int32),
        }

    def clear(self, host: dict[str, Any]) -> None:
        """See CudaAttention."""
        host["rows"][:], host["decode_contexts"][:] = SKIP, 0

    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        """See CudaAttention."""
        num = len(batch.parts)
        extents = np.array([place.ids for place in batch.places])
        host["extents"][:num] = extents
        heads = extents[:, :1] * self.kv_heads + np.arange(self.kv_heads) * extents[:, 1:]
        host["rows"][: num * self.kv_heads] = (heads + batch.positions[:, None]).ravel()
        host["decode_contexts"][:num] = batch.positions + 1

    def open(self, batch: Ragged) -> None:
        """See CudaAttention; the long tables are made on the GPU."""
        super().open(batch)
        longest = max((part.context_len for part in batch.parts[: batch.num_prompts]), default=0)
        run = torch.arange(longest, dtype=torch.int32, device=self.pools.device.device)
        self.now["row_tables"] = self.now["first_rows"] + run

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See CudaAttention."""
        size = k.shape[2]
        rows = (x.reshape(-1, 1, size) for x in (k, v))
        write_cache(self._rows[2 * layer], self._rows[2 * layer + 1], *rows, self.now["rows"])

    def prefill(self, layer: int, out: Tensor, q: Tensor) -> None:
        """See CudaAttention."""
        now, (num_tokens, _, size) = self.now, q.shape
        by_head = q.unflatten(1, (self.kv_heads, -1)).transpose(0, 1).reshape(self.kv_heads * num_tokens, -1, size)
        attended = torch.empty_like(by_head)
        paged_prefill(
            attended, by_head, self._rows[2 * layer], self._rows[2 * layer + 1], now["row_tables"],
            now["head_starts"], now["head_contexts"], max_query_len=self.longest_prompt,
        )  # fmt: skip
        out.copy_(attended.view(self.kv_heads, num_tokens, -1, size).transpose(0, 1).flatten(1, 2))

    def decode(self, layer: int, out: Tensor, q: Tensor) -> None:
        """See CudaAttention."""
        contiguous_decode(
            out, q, self._slots[2 * layer], self._slots[2 * layer + 1], self.now["extents"],
            self.now["decode_contexts"], max_context_len=self.longest_context, workspace=self.workspace(q),
        )  # fmt: skip


def written_rows(batch: Ragged, layout: Layout) -> Ints:
    """The row of every head of every token of the batch, as `written_slots`."""
    rows = [np.empty((0, layout.num_kv_heads), np.int64)]
    for part, place in zip(batch.parts, batch.places, strict=True):
        positions = np.arange(part.stored, part.context_len)
        found = layout.rows(place, layout.slots(place, positions))
        rows.append(np.where(positions[:, None] < part.written, SKIP, found))
    return np.concatenate(rows).ravel()
