"""Random ragged batches: caches, shuffled and shared block tables, NaN in slots without an owner."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.verify import reference
from testbed.kernels.verify.reference import NAN_E4M3

UNUSED_ID = 1 << 29  # in table entries past a context: a kernel that reads it faults


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads and storage of a batch."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int = 16
    dtype: torch.dtype = torch.float16


@dataclass(frozen=True, slots=True)
class Form:
    """How a cache is stored and read: as e4m3, and by a window."""

    fp8: bool = False
    window: int | None = None

    def __str__(self) -> str:
        return "".join([", fp8"] * self.fp8 + [", window"] * (self.window is not None))


@dataclass(frozen=True, slots=True)
class Batch:
    """One paged batch on the device; lens are Python ints, with a device copy. kv_scales: of caches of e4m3."""

    shape: Shape
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    lens: list[int]
    kv_scales: Tensor | None = None

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """K and V as numbers."""
        if self.kv_scales is None:
            return self.k_cache, self.v_cache
        pairs = zip((self.k_cache, self.v_cache), self.kv_scales, strict=True)
        k, v = (reference.dequantized(x.transpose(1, 2), scale).transpose(1, 2) for x, scale in pairs)
        return k, v

    def quantized(self, rng: np.random.Generator) -> "Batch":
        """The batch with caches of e4m3 by random scales, of which some values exceed the range."""
        scales = torch.from_numpy(rng.uniform(0.005, 0.05, (2, self.shape.num_kv_heads)).astype(np.float32)).cuda()
        pairs = zip((self.k_cache, self.v_cache), scales, strict=True)
        k, v = (reference.quantized(x.transpose(1, 2), scale).transpose(1, 2).contiguous() for x, scale in pairs)
        return replace(self, k_cache=k, v_cache=v, kv_scales=scales)

    def without_unread(self, window: int | None, news: Sequence[int]) -> "Batch":
        """The batch whose table entries before the windows of its new tokens name a block of NaN."""
        tables, size = self.block_tables.clone(), self.shape.block_size
        spare = (set(range(len(self.k_cache))) - set(tables.flatten().tolist())).pop()
        for table, length, new in zip(tables, self.lens, news, strict=True):
            table[: max(0, length - new + 1 - (window or length)) // size] = spare
        return replace(self, block_tables=tables)


def shuffled_tables(
    rng: np.random.Generator, num_blocks: Sequence[int], spare: int, shared: bool
) -> tuple[np.ndarray, int]:
    """A permuted block table and the pool size; if `shared`, sequences start with blocks of the first one."""
    total = int(sum(num_blocks)) + spare
    ids = rng.permutation(total)
    table = np.full((len(num_blocks), max(1, max(num_blocks))), UNUSED_ID, np.int32)
    start = 0
    for row, count in enumerate(num_blocks):
        table[row, :count] = ids[start : start + count]
        start += count
        if shared and row and rng.random() < 0.5:
            common = int(rng.integers(0, min(count, num_blocks[0]) + 1))
            table[row, :common] = table[0, :common]
    return table, total


def owned_slots(table: np.ndarray, lens: Sequence[int], block_size: int, total: int) -> np.ndarray:
    """Mask [total, block_size] of the slots that some sequence's context covers."""
    mask = np.zeros((total, block_size), bool)
    for row, length in zip(table, lens, strict=True):
        full, rest = divmod(length, block_size)
        mask[row[:full]] = True
        if rest:
            mask[row[full], :rest] = True
    return mask


def random_batch(rng: np.random.Generator, shape: Shape, lens: Sequence[int], num_queries: int | None = None) -> Batch:
    """A batch with NaN in its slots without an owner and blocks; inputs are first rounded to the storage type."""
    blocks = [-(-length // shape.block_size) for length in lens]
    table, total = shuffled_tables(rng, blocks, spare=3, shared=bool(rng.random() < 0.5))
    mask = torch.from_numpy(owned_slots(table, lens, shape.block_size, total)).cuda()[:, None, :, None]
    generator = torch.Generator("cuda").manual_seed(int(rng.integers(1 << 62)))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device="cuda").to(shape.dtype)

    size = (total, shape.num_kv_heads, shape.block_size, shape.head_size)
    k_cache, v_cache = (normal(*size).masked_fill_(~mask, float("nan")) for _ in range(2))
    q = normal(len(lens) if num_queries is None else num_queries, shape.num_heads, shape.head_size)
    tables, context_lens = torch.from_numpy(table).cuda(), torch.tensor(list(lens), dtype=torch.int32).cuda()
    return Batch(shape, q, k_cache, v_cache, tables, context_lens, list(lens))


def to_extents(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The same keys and values in one extent per sequence, with NaN in unused slots: K pool, V pool, extents."""
    shape, capacities = batch.shape, [length + 1 + 5 * (i % 2) for i, length in enumerate(batch.lens)]
    firsts = np.concatenate([[0], np.cumsum(capacities)])
    pools = []
    for cache in (batch.k_cache, batch.v_cache):
        size, nothing = (
            (int(firsts[-1]), shape.num_kv_heads, shape.head_size),
            NAN_E4M3 if batch.kv_scales is not None else float("nan"),
        )
        pool = torch.full(size, nothing, dtype=cache.dtype, device="cuda")
        for i, length in enumerate(batch.lens):
            rows = reference.gather(cache, batch.block_tables[i], length) if length else cache[:0, :, 0]
            extent = pool[firsts[i] : firsts[i + 1]].view(shape.num_kv_heads, capacities[i], shape.head_size)
            extent[:, :length] = rows.transpose(0, 1)
        pools.append(pool)
    extents = torch.tensor(list(zip(firsts[:-1].tolist(), capacities, strict=True)), dtype=torch.int32).cuda()
    return pools[0], pools[1], extents
