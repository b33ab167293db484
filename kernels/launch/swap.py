"""Swapping blocks between a GPU pool and pinned host memory: the paper's copy per block, and a fused version.

Host pool: [num_host_blocks, num_planes, num_kv_heads, block_size, head_size], pinned: all layers of a block are
adjacent, so a gathered block is one transfer. Calls return before the copies end; wait for the stream.
"""

import math
from collections.abc import Sequence
from typing import Any

from testbed.kernels.launch import arrays
from testbed.kernels.launch.cache_ops import gather_blocks, scatter_blocks
from testbed.kernels.launch.compile import require_gpu

ANY_MEMORY = 4  # cudaMemcpyDefault: the addresses say where they lie
Copies = list[tuple[int, int, int]]  # target and source address, bytes


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
    issue(copies, arrays.stream_pointer(pool))


def swap_fused(pool: Any, host_pool: Any, device_ids: Any, pairs: Sequence[tuple[int, int]], staging: Any,
               to_host: bool) -> None:  # fmt: skip
    """Gather (or scatter) through `staging` on the GPU, and one copy per run of adjacent host blocks.

    device_ids: int32 on the device, the first ids of `pairs` in order; staging: [blocks at once, num_planes, ...block].
    """
    _check_pools(pool, host_pool)
    capacity = arrays.view("staging", staging).shape[0]
    for first in range(0, len(pairs), capacity):
        ids = device_ids[first : first + capacity]
        copies = copies_of_runs(staging, host_pool, [host for _, host in pairs[first : first + capacity]], to_host)
        if to_host:
            gather_blocks(staging, pool, ids)
        issue(copies, arrays.stream_pointer(pool))
        if not to_host:
            scatter_blocks(pool, staging, ids)


def copies_of_runs(staging: Any, host_pool: Any, host_ids: Sequence[int], to_host: bool) -> Copies:
    """One copy for each run of adjacent host blocks, from or to staged blocks in the order of host_ids."""
    staged, host = arrays.view("staging", staging).pointer, arrays.view("host_pool", host_pool)
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


def _check_pools(pool: Any, host_pool: Any) -> tuple[arrays.View, arrays.View, int]:
    device, host = arrays.view("pool", pool), arrays.view("host_pool", host_pool)
    arrays.check(device, (None,) * 5, arrays.HALF + arrays.FP8, align=16)
    if host.on_gpu or host.shape[1:] != (device.shape[0], *device.shape[2:]) or host.dtype != device.dtype:
        raise ValueError(
            f"host_pool: expected pinned host memory [any, {device.shape[0]}, {device.shape[2:]}] of {device.dtype}, "
            f"got {host.shape} of {host.dtype}"
        )
    return device, host, device.shape[2] * device.shape[3] * device.shape[4] * device.itemsize
