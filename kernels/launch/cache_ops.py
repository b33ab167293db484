"""Launch wrappers of the kernels that only move K and V; they run on the caller's stream and can be captured.

A pool is one array [num_planes, num_blocks, num_kv_heads, block_size, head_size]: a plane for each layer's K and
for each layer's V, so that one launch serves all layers. Attention takes its planes as caches.
"""

from typing import Any

import numpy as np

from testbed.kernels.launch import arrays
from testbed.kernels.launch.arrays import FP8, HALF
from testbed.kernels.launch.attention import check_scales
from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import Launch, at_once

MAX_GRID = 65_535  # of the second and third grid dimension
K_CACHE, V_CACHE = 0, 1
KV_SCALES = -1


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
    values, new_k, new_v = arrays.view("v_cache", v_cache), arrays.view("k", k), arrays.view("v", v)
    arrays.check(values, (None, None, None, None), HALF if kv_scales is None or paper_layout else FP8, align=16)
    num_blocks, num_kv_heads, block_size, head_size = values.shape
    keys_shape: tuple[int, ...] = values.shape
    if paper_layout:
        block_size, head_size = head_size, block_size
        keys_shape = (num_blocks, num_kv_heads, head_size // 8, block_size, 8)
    arrays.check(arrays.view("k_cache", k_cache), keys_shape, (values.dtype,), align=16)
    if head_size % 8:
        raise ValueError(f"v_cache: head size {head_size} is no multiple of 8")
    kinds = HALF if values.dtype in FP8 else (values.dtype,)
    for new in (new_k, new_v):
        arrays.check(new, (None, num_kv_heads, head_size), kinds, strided_dims=1, align=16)
    num_tokens = new_k.shape[0]
    arrays.check(new_v, new_k.shape, (new_k.dtype,), strided_dims=1)
    arrays.check(arrays.view("slot_mapping", slot_mapping), (num_tokens,), ("int64",))
    scales = check_scales(kv_scales, num_kv_heads, head_size)
    fp8 = {"FP8": 1, "BF16": int(new_k.dtype == "bfloat16")} if scales else {}
    kernel = _kernel("write_cache", head_size, block_size, paper_layout, **fp8)
    pointers = [arrays.view("", a).pointer for a in (k_cache, v_cache, k, v, slot_mapping)]
    numbers = map(np.int32, (new_k.strides[0], new_v.strides[0], num_kv_heads))
    threads = min(256, -(-num_kv_heads * head_size // 8 // 32) * 32)
    return Launch(kernel, (num_tokens,), (threads,), (*pointers, *numbers, scales))


write_cache = at_once(bind_write_cache)


def bind_copy_blocks(pool: Any, pairs: Any) -> Launch:
    """Copy-on-write: pairs int32 [num_pairs, 2] of source and target block id, all planes, in one launch.

    No target may appear twice or also be a source.
    """
    view = _check_pool(pool)
    num_pairs = arrays.check(arrays.view("pairs", pairs), (None, 2), ("int32",)).shape[0]
    arrays.check_range("pairs: number of copies", num_pairs, 0, MAX_GRID)
    return _bound("copy_blocks", (view.pointer, arrays.view("pairs", pairs).pointer), view, num_pairs)


copy_blocks = at_once(bind_copy_blocks)


def bind_gather_blocks(staging: Any, pool: Any, ids: Any) -> Launch:
    """Copy blocks `ids` (int32) of all planes to the start of `staging`, [at least num_ids, num_planes, ...block]."""
    view, staged, num_ids = _check_staging(staging, pool, ids)
    return _bound("gather_blocks", (staged, view.pointer, arrays.view("ids", ids).pointer), view, num_ids)


gather_blocks = at_once(bind_gather_blocks)


def bind_scatter_blocks(pool: Any, staging: Any, ids: Any) -> Launch:
    """The inverse of `gather_blocks`; all ids must differ."""
    view, staged, num_ids = _check_staging(staging, pool, ids)
    return _bound("scatter_blocks", (view.pointer, staged, arrays.view("ids", ids).pointer), view, num_ids)


scatter_blocks = at_once(bind_scatter_blocks)


def _check_pool(pool: Any) -> arrays.View:
    view = arrays.check(arrays.view("pool", pool), (None,) * 5, HALF + FP8, align=16)
    if np.prod(view.shape[2:]) * view.itemsize % 16:
        raise ValueError(f"pool: a block of {view.shape[2:]} is no multiple of 16 bytes")
    arrays.check_range("pool: number of planes", view.shape[0], 1, MAX_GRID)
    return view


def _check_staging(staging: Any, pool: Any, ids: Any) -> tuple[arrays.View, int, int]:
    view = _check_pool(pool)
    num_ids = arrays.check(arrays.view("ids", ids), (None,), ("int32",)).shape[0]
    arrays.check_range("ids: number of blocks", num_ids, 0, MAX_GRID)
    staged = arrays.view("staging", staging)
    arrays.check(staged, (None, view.shape[0], *view.shape[2:]), (view.dtype,), align=16)
    if staged.shape[0] < num_ids:
        raise ValueError(f"staging: has {staged.shape[0]} blocks, ids has {num_ids}")
    return view, staged.pointer, num_ids


def _bound(name: str, pointers: tuple[int, ...], view: arrays.View, count: int) -> Launch:
    vectors = int(np.prod(view.shape[2:])) * view.itemsize // 16
    splits = max(1, min(8, vectors // 1024))
    arguments = (*pointers, np.int64(view.shape[1]), np.int32(vectors))
    return Launch(_kernel(name), (splits, count, view.shape[0]), (256,), arguments)


def _kernel(name: str, head_size: int = 8, block_size: int = 1, paper_layout: bool = False, **more: int) -> Any:
    constants = {"HEAD_SIZE": head_size, "BLOCK_SIZE": block_size, "PAPER_LAYOUT": int(paper_layout)}
    return load("cache_ops.cu", name, **constants, **more)
