"""Attention by the contiguous kernels: one extent per sequence, as in FasterTransformer."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.engine.cuda_attention import CudaAttention, Step, written
from testbed.kernels.engine.layout import Layout, Place, Pools
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.launch import attention


class ExtentAttention(CudaAttention):
    """One extent per sequence, laid out [num_kv_heads, length, head_size].

    Decodes run on the contiguous kernel. For prompts, each kv head of a sequence becomes a separate sequence with
    blocks of one slot, so that the paged prefill kernel reads an extent in place.
    """

    bind_decode = staticmethod(attention.bind_contiguous_decode)

    def __init__(self, pools: Pools, layout: Layout, windows: tuple[int | None, ...]) -> None:
        self.heads_apart, size = pools.spec.num_kv_heads, pools.spec.head_size
        super().__init__(pools, layout, windows, pools.all_rows().view(len(pools.device), -1, 1, 1, size))
        if pools.scales is not None:
            self.scales = pools.scales[:, :, :1].contiguous()
            if pools.scales.ne(self.scales).any():
                raise InputError(
                    "a scale for each kv head: the contiguous kernels know one a layer (choose policy=paged)"
                )
        self.decode_planes = pools.device.view(len(pools.device), -1, self.heads_apart, size)

    def table_width(self, longest: int) -> int:
        return 2

    def arrays(self, batch: Ragged) -> dict[str, NDArray[Any]]:
        n, heads = batch.num_prompts, np.arange(self.heads_apart)
        extents = np.array([place.ids for place in batch.places], np.int32).reshape(-1, 2)
        first_rows = extents[:n, 0] * self.heads_apart + heads[:, None] * extents[:n, 1]  # [kv heads, prompts]
        starts = heads[:, None] * batch.num_prompt_tokens + batch.query_starts[:n]
        contexts = [part.context_len for part in batch.parts[:n]]
        return {
            "decode_tables0": extents[n:],
            "first_rows": first_rows.astype(np.int32).reshape(-1, 1),
            "starts": np.append(starts, self.heads_apart * batch.num_prompt_tokens).astype(np.int32),
            "prompt_contexts": np.tile(contexts, self.heads_apart).astype(np.int32),
            "slots0": written(batch, lambda place, at: self.layout.rows(place, self.layout.slots(place, at))),
        }

    def fill(self, host: dict[str, Any], batch: Ragged, before: list[Place]) -> None:
        num = len(batch.parts)
        extents = host["decode_tables0"][:num] = np.array([place.ids for place in batch.places])
        heads = extents[:, :1] * self.heads_apart + np.arange(self.heads_apart) * extents[:, 1:]
        host["slots0"][: num * self.heads_apart] = (heads + batch.positions[:, None]).ravel()
        host["decode_contexts"][:num] = batch.positions + 1

    def open(self, batch: Ragged) -> None:
        """See CudaAttention; the long tables are computed on the GPU."""
        super().open(batch)
        longest = max((part.context_len for part in batch.parts[: batch.num_prompts]), default=0)
        run = torch.arange(longest, dtype=torch.int32, device=self.pools.device.device)
        self.now["prompt_tables0"] = self.now["first_rows"] + run

    def write(self, k: Tensor, v: Tensor) -> Step:
        """See CudaAttention; each head's row of K and V is first copied out of the product's row."""
        rows_k, rows_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        write = super().write(*(x.view(-1, 1, k.shape[2]) for x in (rows_k, rows_v)))

        def step(layer: int, stream: int) -> None:
            rows_k.copy_(k)
            rows_v.copy_(v)
            write(layer, stream)

        return step

    def prefill(self, out: Tensor, q: Tensor) -> Step:
        num_tokens, num_heads, size = q.shape
        shape = self.heads_apart, num_tokens, num_heads // self.heads_apart, size
        by_head, attended = (torch.empty(shape, dtype=q.dtype, device=q.device) for _ in range(2))
        queries, answers = (x.unflatten(1, (self.heads_apart, -1)).transpose(0, 1) for x in (q, out))
        prefill = super().prefill(attended.flatten(0, 1), by_head.flatten(0, 1))

        def step(layer: int, stream: int) -> None:
            by_head.copy_(queries)
            prefill(layer, stream)
            answers.copy_(attended)

        return step
