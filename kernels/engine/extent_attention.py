"""Attention by the contiguous kernels: one extent per sequence, as in FasterTransformer."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.engine.cuda_attention import SKIP, CudaAttention, Shapes, Step, first
from testbed.kernels.engine.layout import Ints, Layout, Place, Pools
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.launch import attention, cache_ops
from testbed.kernels.launch.launch import Launch
from testbed.kernels.launch.prefill_attention import bind_paged_prefill


class ExtentAttention(CudaAttention):
    """One extent per sequence, laid out [num_kv_heads, length, head_size].

    Decodes run on the contiguous kernel. For prompts, each kv head of a sequence becomes a separate sequence with
    blocks of one slot, so that the paged prefill kernel reads an extent in place.
    """

    def __init__(self, pools: Pools, layout: Layout, windows: tuple[int | None, ...]) -> None:
        self.kv_heads, size = pools.spec.num_kv_heads, pools.spec.head_size
        super().__init__(pools, layout, windows, pools.all_rows().view(len(pools.device), -1, 1, 1, size))
        self._row_scales = None if pools.scales is None else pools.scales[:, :, :1].contiguous()
        if pools.scales is not None and pools.scales.ne(pools.scales[:, :, :1]).any():
            raise InputError("a scale for each kv head: the contiguous kernels know one a layer (choose policy=paged)")
        self._slots = pools.device.view(len(pools.device), -1, self.kv_heads, size)

    def arrays(self, batch: Ragged) -> dict[str, NDArray[Any]]:
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
        return {
            "rows": ((num_seqs * self.kv_heads,), np.int64),
            "extents": ((num_seqs, 2), np.int32),
            "decode_contexts": ((num_seqs,), np.int32),
        }

    def clear(self, host: dict[str, Any]) -> None:
        host["rows"][:], host["decode_contexts"][:] = SKIP, 0

    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        num = len(batch.parts)
        extents = np.array([place.ids for place in batch.places])
        host["extents"][:num] = extents
        heads = extents[:, :1] * self.kv_heads + np.arange(self.kv_heads) * extents[:, 1:]
        host["rows"][: num * self.kv_heads] = (heads + batch.positions[:, None]).ravel()
        host["decode_contexts"][:num] = batch.positions + 1

    def open(self, batch: Ragged) -> None:
        """See CudaAttention; the long tables are computed on the GPU."""
        super().open(batch)
        longest = max((part.context_len for part in batch.parts[: batch.num_prompts]), default=0)
        run = torch.arange(longest, dtype=torch.int32, device=self.pools.device.device)
        self.now["row_tables"] = self.now["first_rows"] + run

    def write(self, k: Tensor, v: Tensor) -> Step:
        """See CudaAttention; each head's row of K and V is first copied out of the product's row."""
        rows_k, rows_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        new_k, new_v = (x.view(-1, 1, k.shape[2]) for x in (rows_k, rows_v))

        def bind(column: int, window: int | None) -> Launch:
            rows = self.now["rows"]
            return cache_ops.bind_write_cache(*self.caches, new_k, new_v, rows, kv_scales=first(self._row_scales))

        write = self.by_layer(bind, cache_ops.K_CACHE, cache_ops.KV_SCALES, self._row_scales)

        def step(layer: int, stream: int) -> None:
            rows_k.copy_(k)
            rows_v.copy_(v)
            write(layer, stream)

        return step

    def prefill(self, out: Tensor, q: Tensor) -> Step:
        now, (num_tokens, num_heads, size) = self.now, q.shape
        shape = self.kv_heads, num_tokens, num_heads // self.kv_heads, size
        by_head, attended = (torch.empty(shape, dtype=q.dtype, device=q.device) for _ in range(2))
        queries, answers = (x.unflatten(1, (self.kv_heads, -1)).transpose(0, 1) for x in (q, out))

        def bind(column: int, window: int | None) -> Launch:
            return bind_paged_prefill(
                attended.flatten(0, 1), by_head.flatten(0, 1), *self.caches, now["row_tables"], now["head_starts"],
                now["head_contexts"], max_query_len=self.longest_prompt, kv_scales=first(self._row_scales),
                window=window,
            )  # fmt: skip

        prefill = self.by_layer(bind, attention.K_CACHE, attention.KV_SCALES, self._row_scales)

        def step(layer: int, stream: int) -> None:
            by_head.copy_(queries)
            prefill(layer, stream)
            answers.copy_(attended)

        return step

    def decode(self, out: Tensor, q: Tensor) -> Step:
        def bind(column: int, window: int | None) -> Launch:
            return attention.bind_contiguous_decode(
                out, q, self._slots[0], self._slots[1], self.now["extents"], self.now["decode_contexts"],
                max_context_len=self.longest_context, workspace=self.workspace(q), kv_scales=first(self.pools.scales),
                window=window,
            )  # fmt: skip

        return self.by_layer(bind, attention.K_CACHE, attention.KV_SCALES, self.pools.scales)


def written_rows(batch: Ragged, layout: Layout) -> Ints:
    """The row of every head of every token of the batch; see `written_slots`."""
    rows = [np.empty((0, layout.num_kv_heads), np.int64)]
    for part, place in zip(batch.parts, batch.places, strict=True):
        positions = np.arange(part.num_stored, part.context_len)
        found = layout.rows(place, layout.slots(place, positions))
        rows.append(np.where(positions[:, None] < part.written, SKIP, found))
    return np.concatenate(rows).ravel()
