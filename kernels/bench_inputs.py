"""Inputs of decode and prefill timings: several batches over one large pool, so that repeated calls miss the L2 cache."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.attention import Workspace, contiguous_decode, decode_workspace, paged_decode, paged_prefill
from kernels.batches import Shape
from kernels.paper_attention import paper_decode
from kernels.plan import DecodePlan
from kernels.timing import num_rotations

Calls = list[Callable[[], None]]


class DecodeInputs:
    """Rotating decode batches of the same context lengths: shuffled block tables, and extents over the same memory."""

    def __init__(self, shape: Shape, lens: Sequence[int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.lens, self.longest = shape, list(lens), max(lens)
        blocks = [-(-length // shape.block_size) for length in lens]
        self.kv_bytes = 2 * sum(lens) * shape.num_kv_heads * shape.head_size * 2
        self.rotations = num_rotations(self.kv_bytes)
        total = sum(blocks) * self.rotations
        size = (total, shape.num_kv_heads, shape.block_size, shape.head_size)
        self.k_cache, self.v_cache = (torch.randn(size, dtype=shape.dtype, device="cuda") for _ in range(2))
        tables = np.zeros((self.rotations, len(lens), max(blocks)), np.int32)
        tables[:, np.arange(max(blocks)) < np.array(blocks)[:, None]] = rng.permutation(total).reshape(self.rotations, -1)
        self.tables = torch.from_numpy(tables).cuda()
        capacities = np.tile(np.array(blocks) * shape.block_size, self.rotations)
        firsts = np.cumsum(capacities) - capacities
        extents = np.stack([firsts, capacities], 1).reshape(self.rotations, len(lens), 2).astype(np.int32)
        self.extents = torch.from_numpy(extents).cuda()
        self.context_lens = torch.tensor(self.lens, dtype=torch.int32).cuda().expand(self.rotations, -1).contiguous()
        self.q = torch.randn(
            self.rotations, len(lens), shape.num_heads, shape.head_size, dtype=shape.dtype, device="cuda"
        )
        self.out = torch.empty_like(self.q)
        self.workspace: Workspace | None = None

    def _workspace(self) -> Workspace:
        if self.workspace is None:
            self.workspace = decode_workspace(self.q[0], 128 if self.q[0].numel() < 1 << 20 else 16)
        return self.workspace

    def paged(self, plan: DecodePlan | None = None) -> Calls:
        """Calls of our paged kernel, one per rotation."""
        return [
            lambda i=i: paged_decode(
                self.out[i], self.q[i], self.k_cache, self.v_cache, self.tables[i], self.context_lens[i],
                max_context_len=self.longest, plan=plan, workspace=self._workspace())
            for i in range(self.rotations)
        ]  # fmt: skip

    def contiguous(self, plan: DecodePlan | None = None) -> Calls:
        """Calls of the contiguous kernel on the same memory."""
        size = (-1, self.shape.num_kv_heads, self.shape.head_size)
        return [
            lambda i=i: contiguous_decode(
                self.out[i], self.q[i], self.k_cache.view(size), self.v_cache.view(size), self.extents[i],
                self.context_lens[i], max_context_len=self.longest, plan=plan, workspace=self._workspace())
            for i in range(self.rotations)
        ]  # fmt: skip

    def paper(self) -> Calls:
        """Calls of the paper's kernel; the same memory is taken as interleaved keys (values do not matter here)."""
        blocks, heads, block_size, size = self.k_cache.shape
        keys = self.k_cache.view(blocks, heads, size // 8, block_size, 8)
        return [
            lambda i=i: paper_decode(
                self.out[i], self.q[i], keys, self.v_cache, self.tables[i], self.context_lens[i],
                max_context_len=self.longest)
            for i in range(self.rotations)
        ]  # fmt: skip

    def sdpa(self) -> Calls:
        """torch's attention on contiguous memory; equal lengths only."""
        size = (self.rotations, len(self.lens), self.shape.num_kv_heads, self.longest, self.shape.head_size)
        k, v = (cache.view(-1)[: int(np.prod(size))].view(size) for cache in (self.k_cache, self.v_cache))
        gqa = self.shape.num_heads > self.shape.num_kv_heads
        return [
            lambda i=i: torch.nn.functional.scaled_dot_product_attention(self.q[i][:, :, None], k[i], v[i], enable_gqa=gqa)
            for i in range(self.rotations)
        ]  # fmt: skip


class PrefillInputs:
    """Rotating prefill batches: sequences of (new tokens, past tokens)."""

    def __init__(self, shape: Shape, news: Sequence[int], pasts: Sequence[int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.max_new = shape, max(news)
        lens = np.array(news) + np.array(pasts)
        blocks = -(-lens // shape.block_size)
        self.rotations = num_rotations(int(lens.sum()) * shape.num_kv_heads * shape.head_size * 4)
        total = int(blocks.sum()) * self.rotations
        size = (total, shape.num_kv_heads, shape.block_size, shape.head_size)
        self.k_cache, self.v_cache = (torch.randn(size, dtype=shape.dtype, device="cuda") for _ in range(2))
        tables = np.zeros((self.rotations, len(lens), int(blocks.max())), np.int32)
        tables[:, np.arange(blocks.max()) < blocks[:, None]] = rng.permutation(total).reshape(self.rotations, -1)
        self.tables = torch.from_numpy(tables).cuda()
        self.context_lens = torch.from_numpy(lens.astype(np.int32)).cuda()
        self.starts = torch.from_numpy(np.concatenate([[0], np.cumsum(news)]).astype(np.int32)).cuda()
        self.q = torch.randn(sum(news), shape.num_heads, shape.head_size, dtype=shape.dtype, device="cuda")
        self.out: Tensor = torch.empty_like(self.q)

    def paged(self) -> Calls:
        """Calls of the prefill kernel, one per rotation."""
        return [
            lambda i=i: paged_prefill(
                self.out, self.q, self.k_cache, self.v_cache, self.tables[i], self.starts, self.context_lens,
                max_query_len=self.max_new)
            for i in range(self.rotations)
        ]  # fmt: skip
