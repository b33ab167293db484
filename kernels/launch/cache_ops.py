"""Kernels that only move K and V: launch wrappers, which can be captured, and copies between a pool
on the GPU and pinned host memory.

A pool is one array [num_planes, num_blocks, num_kv_heads, block_size, head_size]: a plane for each
layer's K and for each layer's V, so that one launch serves all layers. Attention takes its planes
as caches. A host pool is [num_host_blocks, num_planes, num_kv_heads, block_size, head_size],
pinned: all layers of a block are adjacent. Calls return before the copies end; wait for the stream.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from testbed.kernels.launch import launch
from testbed.kernels.launch.attention import check_scales
from testbed.kernels.launch.compile import load, require_gpu
from testbed.kernels.launch.launch import (
    FP8,
    HALF,
    Launch,
    View,
    at_once,
    check,
    check_range,
    pointers,
    view,
)

MAX_GRID = 65_535  # of the second and third grid dimension
K_CACHE, V_CACHE = 0, 1
KV_SCALES = -1
ANY_MEMORY = 4  # cudaMemcpyDefault: the addresses say where they lie
# Thread blocks, and threads of each, that move blocks. Those that read the host's memory wait for
# the link. Those that write it fill the link with few loads under way; with more, writes pile up
# and all else on the GPU waits for them.
INTO_GPU, TO_HOST = (8, 512), (4, 128)
IN_FLIGHT = 4  # loads of 16 bytes of each thread
ANY_CACHE = {"HEAD_SIZE": 8, "BF16": 0, "PAGED": 1, "BLOCK_SIZE": 1, "PAPER_LAYOUT": 0}
Copies = list[tuple[int, int, int]]  # target and source address, bytes
End = tuple[
    int, int, int, int
]  # of block copies: address, that of ids or 0, vectors of a block, of a plane


def bind_write_cache(
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    slot_mapping: Any,
    *,
    paper_layout: bool = False,
    kv_scales: Any = None,
) -> Launch:
    """Write new keys and values of a mixed batch to their slots (the paper's fused reshape and
    block write).

    k, v: [num_tokens, num_kv_heads, head_size], rows may be strided. k_cache, v_cache: blocks,
    [num_blocks, num_kv_heads, block_size, head_size], or the layout of `paper_decode` if
    `paper_layout`, with slot_mapping int64 [num_tokens], block id * block_size + offset; or a pool
    of slots, [num_slots, num_kv_heads, head_size], with int64 [num_tokens, num_kv_heads], the row
    of head_size values of each head; negative to skip a token. With kv_scales, float32 [2,
    num_kv_heads] of K and of V, the caches are e4m3: values are divided by their head's scale and
    rounded, those beyond 448 to 448. K_CACHE, V_CACHE and KV_SCALES are the indexes of these
    arguments.
    """
    types = HALF if kv_scales is None or paper_layout else FP8
    caches = _check_written_caches(k_cache, v_cache, types, paper_layout)
    num_kv_heads, head_size = caches.num_kv_heads, caches.head_size
    dtypes = HALF if caches.dtype in FP8 else (caches.dtype,)
    new_k = check("k", k, (None, num_kv_heads, head_size), dtypes, strided_dims=1, align=16)
    new_v = check("v", v, new_k.shape, (new_k.dtype,), strided_dims=1, align=16)
    num_tokens = new_k.shape[0]
    mapping_shape = (num_tokens,) if caches.paged else (num_tokens, num_kv_heads)
    check("slot_mapping", slot_mapping, mapping_shape, ("int64",))
    scales = check_scales(kv_scales, num_kv_heads, head_size)
    types_of_variant = {"BF16": new_k.bf16, "FP8": int(bool(scales))}
    kernel = load("cache_ops.cu", "write_cache", **caches.defines, **types_of_variant)
    numbers = map(np.int32, (new_k.strides[0], new_v.strides[0], num_kv_heads))
    arguments = (*pointers(k_cache, v_cache, k, v, slot_mapping), *numbers, scales)
    threads = min(256, -(-num_kv_heads * head_size // 8 // 32) * 32)
    return Launch(kernel, (num_tokens,), threads, arguments)


class _WrittenCaches(NamedTuple):
    """Shape and type of the caches that `write_cache` fills; a pool of slots has blocks of 1."""

    num_kv_heads: int
    head_size: int
    block_size: int
    paged: bool
    dtype: str
    paper_layout: bool

    @property
    def defines(self) -> dict[str, int]:
        """Compile-time constants of the kernel."""
        return {
            "HEAD_SIZE": self.head_size,
            "BLOCK_SIZE": self.block_size,
            "PAGED": int(self.paged),
            "PAPER_LAYOUT": int(self.paper_layout),
        }


def _check_written_caches(
    k_cache: Any, v_cache: Any, types: tuple[str, ...], paper_layout: bool
) -> _WrittenCaches:
    """Check that both caches have one of these types and the same layout."""
    paged = len(view("v_cache", v_cache).shape) != 3
    values = check("v_cache", v_cache, (None,) * (4 if paged else 3), types, align=16)
    keys_shape = values.shape
    num_kv_heads, head_size = values.shape[1], values.shape[-1]
    block_size = values.shape[2] if paged else 1
    if paper_layout:
        block_size, head_size = head_size, block_size
        keys_shape = (values.shape[0], num_kv_heads, head_size // 8, block_size, 8)
    check("k_cache", k_cache, keys_shape, (values.dtype,), align=16)
    if head_size % 8:
        raise ValueError(f"v_cache: head size {head_size} is no multiple of 8")
    return _WrittenCaches(num_kv_heads, head_size, block_size, paged, values.dtype, paper_layout)


write_cache = at_once(bind_write_cache)


def bind_copy_blocks(pool: Any, pairs: Any) -> Launch:
    """Copy-on-write: pairs int32 [num_pairs, 2] of source and target block id, all planes, in one
    launch.

    No target may appear twice or also be a source.
    """
    blocks, vectors = _check_pool(pool)
    listed = check("pairs", pairs, (None, 2), ("int32",))
    check_range("pairs: number of copies", listed.shape[0], 0, MAX_GRID)
    strides = vectors, blocks.shape[1] * vectors
    target, source = ((blocks.pointer, listed.pointer + column * 4, *strides) for column in (1, 0))
    return _bound(blocks.shape[0], listed.shape[0], vectors, target, source, step=2)


copy_blocks = at_once(bind_copy_blocks)


def bind_stage_blocks(pool: Any, staging: Any, ids: Any, to_host: bool) -> Launch:
    """Copy blocks `ids` (int32) of all planes to the start of `staging`, [at least num_ids,
    num_planes, ...block].

    Not to_host: the inverse; all ids must differ.
    """
    blocks, vectors = _check_pool(pool)
    listed = check("ids", ids, (None,), ("int32",))
    (num_planes, num_blocks), num_ids = blocks.shape[:2], listed.shape[0]
    check_range("ids: number of blocks", num_ids, 0, MAX_GRID)
    staged = check(
        "staging", staging, (None, num_planes, *blocks.shape[2:]), (blocks.dtype,), align=16
    )
    if staged.shape[0] < num_ids:
        raise ValueError(f"staging: has {staged.shape[0]} blocks, ids has {num_ids}")
    here = blocks.pointer, listed.pointer, vectors, num_blocks * vectors
    there = staged.pointer, 0, num_planes * vectors, vectors
    return _bound(num_planes, num_ids, vectors, *((there, here) if to_host else (here, there)))


stage_blocks = at_once(bind_stage_blocks)


def swap_per_block(
    pool: Any, host_pool: Any, pairs: Sequence[tuple[int, int]], to_host: bool
) -> None:
    """One cudaMemcpyAsync per block, layer, and K or V, as in the 2023 system.

    pairs: (device block id, host block id).
    """
    issue(copies_per_fragment(pool, host_pool, pairs, to_host), launch.stream_pointer(pool))


def copies_per_fragment(
    pool: Any, host_pool: Any, pairs: Sequence[tuple[int, int]], to_host: bool
) -> Copies:
    """A copy for each block, layer, and K or V."""
    device, host, size = _check_pools(pool, host_pool)
    num_planes, num_blocks = device.shape[:2]
    ends = [
        (
            device.pointer + (plane * num_blocks + here) * size,
            host.pointer + (there * num_planes + plane) * size,
        )
        for here, there in pairs
        for plane in range(num_planes)
    ]
    return [(there, here, size) if to_host else (here, there, size) for here, there in ends]


def bind_move_blocks(pool: Any, host_pool: Any, pairs: Any, to_host: bool) -> Launch:
    """Copy whole blocks of all planes to pinned host memory, or back, by a kernel of few thread
    blocks.

    pairs: int32 [num_pairs, 2] on the GPU, of the block ids in the pool and in the host's; no
    target may appear twice.
    """
    device, host, _ = _check_pools(pool, host_pool)
    _, vectors = _check_pool(pool)
    listed = check("pairs", pairs, (None, 2), ("int32",))
    num_planes, num_blocks = device.shape[:2]
    here = device.pointer, listed.pointer, vectors, num_blocks * vectors
    there = host.pointer, listed.pointer + 4, num_planes * vectors, vectors
    ends = (there, here) if to_host else (here, there)
    movers = TO_HOST if to_host else INTO_GPU
    return _bound_move(listed.shape[0], num_planes, vectors, *ends, movers=movers)


move_blocks = at_once(bind_move_blocks)


def bind_unload_blocks(staging: Any, host_pool: Any, pairs: Any) -> Launch:
    """Copy staged blocks, [num_pairs, num_planes, ...block], to pinned host memory; the rest as
    `bind_move_blocks`. The first of each pair is not read.
    """
    listed = check("pairs", pairs, (None, 2), ("int32",))
    host = check_host("host_pool", host_pool)
    shape = listed.shape[0], *host.shape[1:]
    staged = check("staging", staging, shape, (host.dtype,), align=16)
    num_planes, vectors = shape[1], math.prod(shape[2:]) * host.itemsize // 16
    strides = num_planes * vectors, vectors
    target, source = (host.pointer, listed.pointer + 4, *strides), (staged.pointer, 0, *strides)
    ends = target, source
    return _bound_move(listed.shape[0], num_planes, vectors, *ends, movers=TO_HOST)


unload_blocks = at_once(bind_unload_blocks)


def issue(copies: Copies, stream: int) -> None:
    """One cudaMemcpyAsync for each copy."""
    copy = require_gpu().cuda.runtime.memcpyAsync
    for target, source, num_bytes in copies:
        copy(target, source, num_bytes, ANY_MEMORY, stream)


def _check_pool(pool: Any) -> tuple[View, int]:
    """The pool, and the vectors of 16 bytes of a block in a plane."""
    blocks = check("pool", pool, (None,) * 5, HALF + FP8, align=16)
    vectors, rest = divmod(math.prod(blocks.shape[2:]) * blocks.itemsize, 16)
    if rest:
        raise ValueError(f"pool: a block of {blocks.shape[2:]} is no multiple of 16 bytes")
    check_range("pool: number of planes", blocks.shape[0], 1, MAX_GRID)
    return blocks, vectors


def check_host(name: str, host_pool: Any) -> View:
    """The view of a pool in pinned host memory."""
    host = view(name, host_pool)
    if host.on_gpu or not host_pool.is_pinned():
        raise ValueError(f"{name}: expected pinned host memory, got {host.shape} elsewhere")
    return host


def _check_pools(pool: Any, host_pool: Any) -> tuple[View, View, int]:
    device = check("pool", pool, (None,) * 5, HALF + FP8, align=16)
    host = check_host("host_pool", host_pool)
    if host.shape[1:] != (device.shape[0], *device.shape[2:]) or host.dtype != device.dtype:
        raise ValueError(
            f"host_pool: expected pinned host memory [any, {device.shape[0]}, {device.shape[2:]}] "
            f"of {device.dtype}, got {host.shape} of {host.dtype}"
        )
    return device, host, math.prod(device.shape[2:]) * device.itemsize


def _bound(
    num_planes: int, count: int, vectors: int, target: End, source: End, step: int = 1
) -> Launch:
    kernel = load("cache_ops.cu", "copy_blocks", **ANY_CACHE)
    grid = max(1, min(8, vectors // 1024)), count, num_planes
    arguments = (*_ends(target, source), np.int32(step), np.int32(vectors))
    return Launch(kernel, grid, 256, arguments)


def _bound_move(
    num_blocks: int,
    num_planes: int,
    vectors: int,
    target: End,
    source: End,
    *,
    movers: tuple[int, int],
) -> Launch:
    kernel = load("cache_ops.cu", "move_blocks", **ANY_CACHE, IN_FLIGHT=IN_FLIGHT)
    numbers = map(np.int32, (2, num_blocks, num_planes, vectors))
    thread_blocks, threads = movers
    grid = (thread_blocks if num_blocks else 0,)
    return Launch(kernel, grid, threads, (*_ends(target, source), *numbers))


def _ends(target: End, source: End) -> list[Any]:
    """The arguments of both ends of block copies."""
    return [
        part
        for address, ids, *strides in (target, source)
        for part in (address, ids, *map(np.int64, strides))
    ]
