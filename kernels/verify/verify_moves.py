"""Checks of the kernels that only move bytes: exact against their references, other bytes unchanged."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.launch.cache_ops import copy_blocks, swap_fused, swap_per_block, write_cache
from testbed.kernels.verify import reference
from testbed.kernels.verify.reference import NAN_E4M3


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def _size(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(1, 9)), int(rng.choice([1, 2, 5, 16, 64])), int(rng.choice([64, 80, 128, 256]))


def check_write(rng: np.random.Generator) -> bool:
    """Fused reshape and write of strided K and V, some tokens skipped, to blocks in both layouts and to rows."""
    heads, block_size, head_size = _size(rng)
    num_blocks, num_tokens = 40, int(rng.integers(1, 41))
    dtype = torch.float16 if rng.random() < 0.5 else torch.bfloat16
    qkv = torch.randn(num_tokens, 3, heads, head_size, device="cuda").to(dtype)
    slots = rng.permutation(num_blocks * block_size)[:num_tokens]
    slots[rng.random(num_tokens) < 0.2] = -1
    mapping = torch.from_numpy(slots.astype(np.int64)).cuda()
    size = (num_blocks, heads, block_size, head_size)
    want_k, want_v, got_k, got_v = (torch.full(size, float("nan"), dtype=dtype, device="cuda") for _ in range(4))
    reference.write_cache(want_k, qkv[:, 1], slots.tolist())
    reference.write_cache(want_v, qkv[:, 2], slots.tolist())
    write_cache(got_k, got_v, qkv[:, 1], qkv[:, 2], mapping)
    same = _same(got_k, want_k) and _same(got_v, want_v)
    same &= _written_by_rows(qkv[:, 1], qkv[:, 2], mapping, num_blocks * block_size, rng)
    if head_size != 80:
        same &= _quantized_equally(qkv[:, 1], qkv[:, 2], slots, size, rng)
    want = reference.interleave_keys(want_k), reference.transpose_values(want_v)
    got = torch.full_like(want[0], float("nan")), torch.full_like(want[1], float("nan"))
    write_cache(*got, qkv[:, 1], qkv[:, 2], mapping, paper_layout=True)
    return same and _same(got[0], want[0]) and _same(got[1], want[1])


def _written_by_rows(k: Tensor, v: Tensor, mapping: Tensor, num_slots: int, rng: np.random.Generator) -> bool:
    _, heads, size = k.shape
    rows = torch.from_numpy(rng.permutation(num_slots * heads)[: len(k) * heads].reshape(-1, heads)).cuda()
    rows[mapping < 0] = -1
    want, got = (torch.full((2, num_slots, heads, size), float("nan"), dtype=k.dtype, device="cuda") for _ in range(2))
    for pool, new in zip(want, (k, v), strict=True):
        pool.view(-1, size)[rows[mapping >= 0]] = new[mapping >= 0]
    write_cache(*got, k, v, rows)
    return _same(got, want)


def _quantized_equally(
    k: Tensor, v: Tensor, slots: np.ndarray, size: tuple[int, ...], rng: np.random.Generator
) -> bool:
    scales = torch.from_numpy(rng.uniform(0.002, 0.05, (2, size[1])).astype(np.float32)).cuda()
    want, got = (torch.full((2, *size), NAN_E4M3, dtype=torch.uint8, device="cuda") for _ in range(2))
    for cache, new, scale in zip(want, (k, v), scales, strict=True):
        reference.write_cache(cache, reference.quantized(new, scale), slots.tolist())
    write_cache(*got, k, v, torch.from_numpy(slots.astype(np.int64)).cuda(), kv_scales=scales)
    return torch.equal(got, want)


def check_copy(rng: np.random.Generator) -> bool:
    """Fused block copy over all planes; every other block unchanged."""
    pool, ids = _random_pool(rng)
    count = int(rng.integers(1, 12))
    sources, targets = rng.choice(ids[:15], count), ids[15 : 15 + count]
    want = pool.clone()
    want[:, targets.tolist()] = pool[:, sources.tolist()]
    copy_blocks(pool, torch.from_numpy(np.stack([sources, targets], 1).astype(np.int32)).cuda())
    return _same(pool, want)


def check_swap(rng: np.random.Generator) -> bool:
    """Swap out by one method and in by the other, through shuffled host blocks and a staging buffer of few blocks."""
    pool, ids = _random_pool(rng)
    count = int(rng.integers(1, 25))
    host = torch.empty((30, pool.shape[0], *pool.shape[2:]), dtype=pool.dtype, pin_memory=True)
    hosts = rng.permutation(30)[:count]
    if rng.random() < 0.5:
        hosts = np.sort(hosts)
    pairs = list(zip(ids[:count].tolist(), hosts.tolist(), strict=True))
    device_ids = torch.from_numpy(ids[:count].astype(np.int32)).cuda()
    staging = torch.empty((5, pool.shape[0], *pool.shape[2:]), dtype=pool.dtype, device="cuda")
    want, same = pool.clone(), True
    for fused_out in (True, False):
        for to_host in (True, False):
            if not to_host:
                pool[:, device_ids.long()] = NAN_E4M3 if pool.dtype == torch.uint8 else float("nan")
            if fused_out == to_host:
                swap_fused(pool, host, device_ids, pairs, staging, to_host)
            else:
                swap_per_block(pool, host, pairs, to_host)
        torch.cuda.synchronize()
        same &= _same(pool, want)
    return same


def _random_pool(rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    heads, block_size, head_size = _size(rng)
    planes, blocks = 2 * int(rng.integers(1, 5)), 30
    pool = torch.randn(planes, blocks, heads, block_size, head_size, device="cuda").half()
    if rng.random() < 0.3:
        pool = pool.to(torch.float8_e4m3fn).view(torch.uint8)
    return pool, rng.permutation(blocks)


MOVE_CHECKS: dict[str, Callable[[np.random.Generator], bool]] = {
    "write_cache": check_write,
    "copy_blocks": check_copy,
    "swap (fused and per block)": check_swap,
}
