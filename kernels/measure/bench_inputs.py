"""Inputs of timings: like the layers of one forward pass, calls share block tables and lengths and
differ in caches.

The total size of the caches is several times the L2 cache, so that every call reads K and V from
device memory.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.kernels.launch.attention import decode, decode_workspace, paper_decode
from testbed.kernels.launch.decode_plan import WORTH_SHARING
from testbed.kernels.launch.prefill_attention import prefill, prefix_attention
from testbed.kernels.measure.timing import num_rotations
from testbed.kernels.verify.reference import Shape, shuffled_tables

Calls = list[Callable[[], object]]
LayerCaches = Iterable[tuple[torch.Tensor, torch.Tensor]]  # K and V of each


class Pools:
    """One large random buffer, half K and half V, cut into layers of caches for each timing; filled
    once. In two buffers the caches could lie too far apart for kind=tma.
    """

    def __init__(self, num_bytes: int, dtype: torch.dtype = torch.float16) -> None:
        self.k, self.v = torch.randn((2, num_bytes // 4), dtype=dtype, device="cuda").unbind()

    def caches(
        self, layers: int, num_blocks: int, shape: Shape
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of `layers` layers, [layers, num_blocks, kv heads, block_size, head_size]."""
        size = (layers, num_blocks, shape.num_kv_heads, shape.block_size, shape.head_size)
        count = int(np.prod(size))
        return self.k[:count].view(size), self.v[:count].view(size)

    def blocks(self, shape: Shape) -> int:
        """Number of blocks that fit for one layer."""
        return self.k.numel() // (shape.num_kv_heads * shape.block_size * shape.head_size)


class Inputs:
    """Sequences of given lengths over several layers, in pools of up to `spread` times their
    blocks.
    """

    def __init__(
        self, pools: Pools, shape: Shape, lens: Sequence[int], seed: int, spread: int
    ) -> None:
        self.shape, self.lens, self.longest = shape, list(lens), max(lens)
        self.blocks = -(-np.array(lens) // shape.block_size)
        self.kv_bytes = 4 * sum(lens) * shape.num_kv_heads * shape.head_size
        used = int(self.blocks.sum())
        self.layers = min(num_rotations(self.kv_bytes), pools.blocks(shape) // used)
        self.spread = max(1, min(spread, pools.blocks(shape) // (used * self.layers)))
        self.k_cache, self.v_cache = pools.caches(self.layers, used * self.spread, shape)
        tables, _ = shuffled_tables(
            np.random.default_rng(seed), self.blocks, used * (self.spread - 1), shared=False
        )
        self.tables = torch.from_numpy(tables).cuda()
        self.context_lens = torch.tensor(self.lens, dtype=torch.int32).cuda()

    def sdpa_of(self, queries: Iterable[torch.Tensor], **options: Any) -> Calls:
        """torch's attention on contiguous memory, by the queries of each layer; equal lengths
        only.
        """
        size = (
            self.layers,
            len(self.lens),
            self.shape.num_kv_heads,
            self.longest,
            self.shape.head_size,
        )
        k, v = (
            cache.reshape(-1)[: int(np.prod(size))].view(size)
            for cache in (self.k_cache, self.v_cache)
        )
        gqa = self.shape.num_heads > self.shape.num_kv_heads
        attention = partial(
            torch.nn.functional.scaled_dot_product_attention, enable_gqa=gqa, **options
        )
        return [partial(attention, *layer) for layer in zip(queries, k, v, strict=True)]


class DecodeInputs(Inputs):
    """One decode batch of given context lengths over several layers, paged and contiguous."""

    def __init__(self, pools: Pools, shape: Shape, lens: Sequence[int], seed: int = 0) -> None:
        super().__init__(pools, shape, lens, seed, spread=4)
        capacities = self.blocks * shape.block_size
        firsts = (np.cumsum(capacities) - capacities) * self.spread
        self.extents = torch.from_numpy(np.stack([firsts, capacities], 1).astype(np.int32)).cuda()
        size = (self.layers, len(lens), shape.num_heads, shape.head_size)
        self.q = torch.randn(size, dtype=shape.dtype, device="cuda")
        self.out = torch.empty_like(self.q)
        self.workspace = decode_workspace(self.q[0], 128 if self.q[0].numel() < 1 << 20 else 32)

    def paged(self) -> Calls:
        """Calls of our paged kernel, one per layer."""
        return self._decodes(zip(self.k_cache, self.v_cache, strict=True), self.tables)

    def sharing(self, prefix: int) -> Calls:
        """Calls of two kernels, of which the first reads the tokens that all sequences begin with
        once for all, if that pays.
        """
        repeated = (len(self.lens) - 1) * prefix
        if repeated * self.kv_bytes // sum(self.lens) < WORTH_SHARING:
            return self.paged()
        runs, prefixes = (
            torch.tensor(values, dtype=torch.int32, device="cuda")
            for values in ([0, len(self.lens)], [prefix] * len(self.lens))
        )
        options = {"workspace": self.workspace, "max_run": len(self.lens)}
        rest = {"prefixes": prefixes, "max_context_len": self.longest - prefix}

        def call(decode_rest: Callable[[], object], q: torch.Tensor, *kv: torch.Tensor) -> None:
            prefix_attention(q, *kv, self.tables, runs, prefixes, **options)
            decode_rest()

        layers = list(zip(self.k_cache, self.v_cache, strict=True))
        decodes = self._decodes(layers, self.tables, **rest)
        return [
            partial(call, decode_rest, q, *kv)
            for decode_rest, q, kv in zip(decodes, self.q, layers, strict=True)
        ]

    def contiguous(self) -> Calls:
        """Calls of the contiguous kernel on the same memory."""
        size = (self.layers, -1, self.shape.num_kv_heads, self.shape.head_size)
        layers = zip(self.k_cache.view(size), self.v_cache.view(size), strict=True)
        return self._decodes(layers, self.extents)

    def _decodes(self, layers: LayerCaches, places: torch.Tensor, **options: Any) -> Calls:
        options = {"max_context_len": self.longest, "workspace": self.workspace} | options
        rows = zip(self.out, self.q, layers, strict=True)
        return [
            partial(decode, out, q, *kv, places, self.context_lens, **options)
            for out, q, kv in rows
        ]

    def paper(self) -> Calls:
        """Calls of the paper's kernel, which reads the same memory in its layout."""
        layers, blocks, heads, block_size, size = self.k_cache.shape
        keys = self.k_cache.view(layers, blocks, heads, size // 8, block_size, 8)
        values = self.v_cache.view(layers, blocks, heads, size, block_size)
        return [
            partial(
                paper_decode, *layer, self.tables, self.context_lens, max_context_len=self.longest
            )
            for layer in zip(self.out, self.q, keys, values, strict=True)
        ]

    def sdpa(self) -> Calls:
        """torch's attention on contiguous memory; equal lengths only."""
        return self.sdpa_of(self.q[:, :, :, None])


class PrefillInputs(Inputs):
    """One prefill batch of sequences of (new tokens, past tokens) over several layers."""

    def __init__(
        self, pools: Pools, shape: Shape, news: Sequence[int], pasts: Sequence[int] | None = None
    ) -> None:
        lens = [new + past for new, past in zip(news, pasts or [0] * len(news), strict=True)]
        super().__init__(pools, shape, lens, seed=0, spread=1)
        self.max_new = max(news)
        self.starts = torch.from_numpy(
            np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
        ).cuda()
        self.q = torch.randn(
            sum(news), shape.num_heads, shape.head_size, dtype=shape.dtype, device="cuda"
        )
        self.out = torch.empty_like(self.q)

    def paged(self) -> Calls:
        """Calls of the prefill kernel, one per layer."""
        arrays = self.tables, self.starts, self.context_lens
        return [
            partial(prefill, self.out, self.q, *kv, *arrays, max_query_len=self.max_new)
            for kv in zip(self.k_cache, self.v_cache, strict=True)
        ]

    def sdpa(self) -> Calls:
        """torch's causal attention on contiguous memory; equal lengths without a past only."""
        q = self.q.view(len(self.lens), self.max_new, -1, self.shape.head_size).transpose(1, 2)
        return self.sdpa_of([q] * self.layers, is_causal=True)


def shard_shape(model: ModelSpec, num_gpus: int, block_size: int = 16) -> Shape:
    """The heads on one of num_gpus GPUs under tensor parallelism. Raises InputError if they
    cannot be divided.
    """
    if model.num_heads % num_gpus or (
        model.num_kv_heads % num_gpus and num_gpus % model.num_kv_heads
    ):
        raise InputError(
            key=model.name,
            problem=(
                f"{model.num_heads}/{model.num_kv_heads} heads do not split over {num_gpus} GPUs"
            ),
        )
    kv_heads = max(1, model.num_kv_heads // num_gpus)
    return Shape(model.num_heads // num_gpus, kv_heads, model.head_size, block_size, torch.float16)
