"""Launch of the prefill kernel with roles (prefill_tma.cu): Hopper only, head sizes 64 and 128, blocks of 8 to 256."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np

from kernels.launch.attention import Shapes, log2_scale
from kernels.launch.compile import load, multiprocessors, require_gpu
from kernels.launch.tensor_map import tensor_map

Q_ROWS = K_ROWS = 128
NUM_THREADS = 384
NUM_COUNTERS = 4096
ITEMS = 256  # of a group at least: about two a multiprocessor, long ones first, so that all end together
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class TmaPlan:
    """How the kernel is built and its grid cut; see prefill_tma.cu.

    pingpong: warpgroups take turns at starting products. lazy: a row's maximum may lag behind. halves: the last tile is
    cut where rows see only half of it. pack: an item has all heads that share a kv head, where these are a power of
    two up to 8. stays: thread blocks draw items until none is left; else there is one an item. l2_share: bytes of K and
    V that thread blocks running together should share through the L2 cache.
    """

    pingpong: bool = True
    lazy: bool = True
    stays: bool = True
    pack: bool = False
    halves: bool = True
    l2_share: int = 24 << 20


def takes(s: Shapes, caches: Sequence[int]) -> bool:
    """Whether the kernel has these sizes, and whether caches at these addresses are rows of one map of memory."""
    row = s.head_size * 2
    last = origin_of(caches[0]) + ((1 << 31) - 1) * row - s.num_blocks * s.num_kv_heads * s.block_size * row
    here = all(cache % row == 0 and origin_of(caches[0]) <= cache <= last for cache in caches)
    return s.head_size in (64, 128) and s.block_size in BLOCK_SIZES and here


def packed(group: int, plan: TmaPlan) -> int:
    """Heads of an item, of `group` that share a kv head."""
    return group if plan.pack and group in (2, 4, 8) else 1


def constants(group: int, block_size: int, plan: TmaPlan) -> dict[str, int]:
    """What the kernel is compiled for beside the shape."""
    pack = int(packed(group, plan) > 1)
    chosen = {"PINGPONG": int(plan.pingpong), "LAZY": int(plan.lazy), "HALVES": int(plan.halves), "PACK": pack}
    return {"BLOCK_SIZE": block_size, **chosen}


def arranged(
    s: Shapes, pointers: Sequence[int], max_blocks: int, num_seqs: int, max_query_len: int, scale: float | None,
    plan: TmaPlan,
) -> tuple[Any, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int]:  # fmt: skip
    """Kernel, grid, block, arguments and bytes of shared memory of a launch whose arguments were checked.

    pointers: of out, q, K and V cache, block tables, query starts and context lengths.
    """
    share = s.num_heads // s.num_kv_heads
    kernel = load("prefill_tma.cu", "prefill", **s.defines, **constants(share, s.block_size, plan))
    shared_bytes = shared_memory(s.head_size)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    device, origin, heads = require_gpu().cuda.runtime.getDevice(), origin_of(pointers[2]), packed(share, plan)
    tiles, pairs = -(-max_query_len * heads // Q_ROWS), num_seqs * s.num_heads // heads
    grid, counter = tiles * pairs, 0
    if plan.stays:
        grid, counter = min(grid, multiprocessors(device)), next_counter(device)
    room = max_blocks * s.block_size * s.head_size * 4 * s.num_kv_heads * heads // s.num_heads
    group = evenly(pairs, max(-(-ITEMS // tiles), plan.l2_share // room))
    numbers = map(np.int32, (s.q_stride, s.num_kv_heads, max_blocks, num_seqs, tiles, group))
    rows = rows_of_memory(device, origin, s.head_size, s.block_size)
    arguments = (*pointers, rows, origin, counter, log2_scale(scale, s.head_size), *numbers)
    return kernel, (grid,), (NUM_THREADS,), arguments, shared_bytes


def evenly(pairs: int, most: int) -> int:
    """The size of groups of at most `most` pairs, and no less than half: large, and the last not much smaller."""
    most = min(pairs, most)
    sizes = range(-(-pairs // -(-pairs // most)), most // 2, -1)
    return next((size for size in sizes if (pairs % size or size) >= 0.9 * size), sizes[0])


def origin_of(pointer: int) -> int:
    """Where the rows of memory begin that tensor copies name: at least 64 GiB below, so that other caches fit too."""
    return max(0, (pointer >> 36) - 1) << 36


@cache
def rows_of_memory(device: int, origin: int, head_size: int, block_size: int) -> int:
    """The address of a map of all memory from `origin` on as rows of a head, by boxes of a block; it is never freed."""
    box = (64, min(block_size, K_ROWS))
    encoded = tensor_map(origin, (head_size, (1 << 31) - 1), (head_size * 2,), box)
    there = require_gpu().asarray(encoded)
    require_gpu().cuda.get_current_stream().synchronize()
    _kept.append(there)
    return int(there.data.ptr)


_kept: list[Any] = []


@cache
def counters(device: int) -> tuple[Any, Iterator[int]]:
    """Counters of a device, all zero, and the endless turn in which launches take them."""
    cupy = require_gpu()
    room = cupy.zeros((NUM_COUNTERS, 2), "int32")
    cupy.cuda.get_current_stream().synchronize()
    return room, cycle(range(room.data.ptr, room.data.ptr + room.nbytes, 8))


def next_counter(device: int) -> int:
    """The address of a counter that no launch of the last NUM_COUNTERS - 1 uses; each leaves its own at zero."""
    return next(counters(device)[1])


def shared_memory(head_size: int) -> int:
    """Q, two stages of K and of V, the output on its way out, 128 rows each; and barriers."""
    return 6 * 128 * head_size * 2 + 128
