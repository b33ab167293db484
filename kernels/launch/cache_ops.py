"""What only moves K and V: launch wrappers, which can be captured, and swaps between a GPU pool and pinned host memory.

A pool is one array [num_planes, num_blocks, num_kv_heads, block_size, head_size]: a plane for each layer's K and
for each layer's V, so that one launch serves all layers. Attention takes its planes as caches. A host pool is
[num_host_blocks, num_planes, num_kv_heads, block_size, head_size], pinned: all layers of a block are adjacent, so a
gathered block is one transfer. Calls return before the copies end; wait for the stream.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.kernels.launch import launch
from testbed.kernels.launch.attention import check_scales
from testbed.kernels.launch.compile import load, require_gpu
from testbed.kernels.launch.launch import FP8, HALF, Launch, View, at_once, check, check_range, pointers

MAX_GRID = 65_535  # of the second and third grid dimension
K_CACHE, V_CACHE = 0, 1
KV_SCALES = -1
ANY_MEMORY = 4  # cudaMemcpyDefault: the addresses say where they lie
Copies = list[tuple[int, int, int]]  # target and source address, bytes


def bind_write_cache(
    k_cache: Any, v_cache: Any, k: Any, v: Any, slot_mapping: Any, *, paper_layout: bool = False,
    kv_scales: Any = None,
) -> Launch:  # fmt: skip
    """Write new keys and values of a mixed batch to their slots (the paper's fused reshape and block write).

    k, v: [num_tokens, num_kv_heads, head_size], rows may be strided; slot_mapping: int64 [num_tokens], block id *
    block_size + offset, negative to skip a token; k_cache, v_cache: [num_blocks, num_kv_heads, block_size, head_size],
    or the layout of `paper_decode` if `paper_layout`. With kv_scales, float32 [2, num_kv_heads] of K and of V, the
    caches are e4m3: values are divided by their head's scale and rounded, those beyond 448 to 448. K_CACHE, V_CACHE
    and KV_SCALES are the indexes of these arguments.
    """
    types = HALF if kv_scales is None or paper_layout else FP8
    values = check("v_cache", v_cache, (None, None, None, None), types, align=16)
    num_blocks, num_kv_heads, block_size, head_size = values.shape
    keys_shape: tuple[int, ...] = values.shape
    if paper_layout:
        block_size, head_size = head_size, block_size
        keys_shape = (num_blocks, num_kv_heads, head_size // 8, block_size, 8)
    check("k_cache", k_cache, keys_shape, (values.dtype,), align=16)
    if head_size % 8:
        raise ValueError(f"v_cache: head size {head_size} is no multiple of 8")
    kinds = HALF if values.dtype in FP8 else (values.dtype,)
    row = (None, num_kv_heads, head_size)
    new_k, new_v = (check(*new, row, kinds, strided_dims=1, align=16) for new in (("k", k), ("v", v)))
    num_tokens = new_k.shape[0]
    check("v", v, new_k.shape, (new_k.dtype,), strided_dims=1)
    check("slot_mapping", slot_mapping, (num_tokens,), ("int64",))
    scales = check_scales(kv_scales, num_kv_heads, head_size)
    fp8 = {"FP8": 1, "BF16": int(new_k.dtype == "bfloat16")} if scales else {}
    kernel = _kernel("write_cache", head_size, block_size, paper_layout, **fp8)
    numbers = map(np.int32, (new_k.strides[0], new_v.strides[0], num_kv_heads))
    arguments = (*pointers(k_cache, v_cache, k, v, slot_mapping), *numbers, scales)
    threads = min(256, -(-num_kv_heads * head_size // 8 // 32) * 32)
    return Launch(kernel, (num_tokens,), (threads,), arguments)


write_cache = at_once(bind_write_cache)


def bind_copy_blocks(pool: Any, pairs: Any) -> Launch:
    """Copy-on-write: pairs int32 [num_pairs, 2] of source and target block id, all planes, in one launch.

    No target may appear twice or also be a source.
    """
    blocks, listed = _check_pool(pool), check("pairs", pairs, (None, 2), ("int32",))
    check_range("pairs: number of copies", listed.shape[0], 0, MAX_GRID)
    return _bound("copy_blocks", blocks, listed.shape[0], pool, pairs)


copy_blocks = at_once(bind_copy_blocks)


def bind_gather_blocks(staging: Any, pool: Any, ids: Any) -> Launch:
    """Copy blocks `ids` (int32) of all planes to the start of `staging`, [at least num_ids, num_planes, ...block]."""
    return _bound("gather_blocks", *_check_staging(staging, pool, ids), staging, pool, ids)


gather_blocks = at_once(bind_gather_blocks)


def bind_scatter_blocks(pool: Any, staging: Any, ids: Any) -> Launch:
    """The inverse of `gather_blocks`; all ids must differ."""
    return _bound("scatter_blocks", *_check_staging(staging, pool, ids), pool, staging, ids)


scatter_blocks = at_once(bind_scatter_blocks)


def swap_per_block(pool: Any, host_pool: Any, pairs: Sequence[tuple[int, int]], to_host: bool) -> None:
    """One cudaMemcpyAsync per block, layer, and K or V, as in the 2023 system.

    pairs: (device block id, host block id).
    """
    device, host, block_bytes = _check_pools(pool, host_pool)
    num_planes, num_blocks = device.shape[:2]
    copies = []
    for device_id, host_id in pairs:
        for plane in range(num_planes):
            on_device = device.pointer + (plane * num_blocks + device_id) * block_bytes
            on_host = host.pointer + (host_id * num_planes + plane) * block_bytes
            copies.append((on_host, on_device, block_bytes) if to_host else (on_device, on_host, block_bytes))
    issue(copies, launch.stream_pointer(pool))


def swap_fused(pool: Any, host_pool: Any, device_ids: Any, pairs: Sequence[tuple[int, int]], staging: Any,
               to_host: bool) -> None:  # fmt: skip
    """Gather (or scatter) through `staging` on the GPU, and one copy per run of adjacent host blocks.

    device_ids: int32 on the device, the first ids of `pairs` in order; staging: [blocks at once, num_planes, ...block].
    """
    _check_pools(pool, host_pool)
    capacity = launch.view("staging", staging).shape[0]
    for first in range(0, len(pairs), capacity):
        ids = device_ids[first : first + capacity]
        copies = copies_of_runs(staging, host_pool, [host for _, host in pairs[first : first + capacity]], to_host)
        if to_host:
            gather_blocks(staging, pool, ids)
        issue(copies, launch.stream_pointer(pool))
        if not to_host:
            scatter_blocks(pool, staging, ids)


def copies_of_runs(staging: Any, host_pool: Any, host_ids: Sequence[int], to_host: bool) -> Copies:
    """One copy for each run of adjacent host blocks, from or to staged blocks in the order of host_ids."""
    staged, host = launch.view("staging", staging).pointer, launch.view("host_pool", host_pool)
    piece = host.itemsize * math.prod(host.shape[1:])
    ends = [(staged + at * piece, host.pointer + host_id * piece, n * piece) for at, host_id, n in runs(host_ids)]
    return [(on_host, on_device, size) if to_host else (on_device, on_host, size) for on_device, on_host, size in ends]


def issue(copies: Copies, stream: int) -> None:
    """One cudaMemcpyAsync for each copy."""
    copy = require_gpu().cuda.runtime.memcpyAsync
    for target, source, num_bytes in copies:
        copy(target, source, num_bytes, ANY_MEMORY, stream)


def runs(ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Maximal runs of adjacent ids as (position, first id, count)."""
    found: list[tuple[int, int, int]] = []
    for position, block_id in enumerate(ids):
        if found and block_id == found[-1][1] + found[-1][2]:
            at, first, count = found[-1]
            found[-1] = (at, first, count + 1)
        else:
            found.append((position, block_id, 1))
    return found


def _check_pool(pool: Any) -> View:
    blocks = check("pool", pool, (None,) * 5, HALF + FP8, align=16)
    if np.prod(blocks.shape[2:]) * blocks.itemsize % 16:
        raise ValueError(f"pool: a block of {blocks.shape[2:]} is no multiple of 16 bytes")
    check_range("pool: number of planes", blocks.shape[0], 1, MAX_GRID)
    return blocks


def _check_staging(staging: Any, pool: Any, ids: Any) -> tuple[View, int]:
    blocks, num_ids = _check_pool(pool), check("ids", ids, (None,), ("int32",)).shape[0]
    check_range("ids: number of blocks", num_ids, 0, MAX_GRID)
    staged = check("staging", staging, (None, blocks.shape[0], *blocks.shape[2:]), (blocks.dtype,), align=16)
    if staged.shape[0] < num_ids:
        raise ValueError(f"staging: has {staged.shape[0]} blocks, ids has {num_ids}")
    return blocks, num_ids


def _check_pools(pool: Any, host_pool: Any) -> tuple[View, View, int]:
    device, host = check("pool", pool, (None,) * 5, HALF + FP8, align=16), launch.view("host_pool", host_pool)
    if host.on_gpu or host.shape[1:] != (device.shape[0], *device.shape[2:]) or host.dtype != device.dtype:
        raise ValueError(
            f"host_pool: expected pinned host memory [any, {device.shape[0]}, {device.shape[2:]}] of {device.dtype}, "
            f"got {host.shape} of {host.dtype}"
        )
    return device, host, device.shape[2] * device.shape[3] * device.shape[4] * device.itemsize


def _bound(name: str, blocks: View, count: int, *arrays: Any) -> Launch:
    vectors = int(np.prod(blocks.shape[2:])) * blocks.itemsize // 16
    splits = max(1, min(8, vectors // 1024))
    arguments = (*pointers(*arrays), np.int64(blocks.shape[1]), np.int32(vectors))
    return Launch(_kernel(name), (splits, count, blocks.shape[0]), (256,), arguments)


def _kernel(name: str, head_size: int = 8, block_size: int = 1, paper_layout: bool = False, **more: int) -> Any:
    constants = {"HEAD_SIZE": head_size, "BLOCK_SIZE": block_size, "PAPER_LAYOUT": int(paper_layout)}
    return load("cache_ops.cu", name, **constants, **more)
