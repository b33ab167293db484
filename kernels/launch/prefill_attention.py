"""Launch wrapper of ragged prefill, which chooses the fastest kernel that can run.

tma: prefill_tma.cu, on Hopper, head sizes 64 and 128, blocks of a power of two and extents; mma:
prefill.cu, anywhere, and the only one for caches of e4m3.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np

from testbed.kernels.launch.attention import (
    ENDLESS,
    Shapes,
    Workspace,
    check_attention,
    check_places,
    chunks_of_prefix,
    log2_scale,
)
from testbed.kernels.launch.compile import compute_capability, load, multiprocessors, require_gpu
from testbed.kernels.launch.decode_plan import Q_ROWS, packed
from testbed.kernels.launch.launch import Launch, at_once, check, check_range, pointers, view

# Of prefill_tma.cu.
K_ROWS = 128
NUM_THREADS = 384
NUM_COUNTERS = 4096
# Least number per group: about two per multiprocessor, long ones first, so that all end together
ITEMS = 256
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ROWS_OF_MAP = (1 << 31) - 1  # of memory, most that the driver takes
BOX_OF_EXTENT = 32  # rows of an extent that are copied at once
UINT16, NO_INTERLEAVE, SWIZZLE_128, L2_256, ZEROS = (
    1,
    0,
    3,
    3,
    0,
)  # of the driver's CUtensorMap enumerations
MAP_BYTES, MAP_ALIGN = 128, 64
L2_SHARE = (
    24 << 20
)  # bytes of K and V that thread blocks running together should share through the L2 cache
# New tokens of the longest prompt up to which the variant for short prompts runs
# (prefill_tma.cu, SHORT and PACK)
SHORT_PROMPT = 256


def bind_prefill(
    out: Any,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    places: Any,
    query_starts: Any,
    context_lens: Any,
    *,
    max_query_len: int,
    scale: float | None = None,
    kind: str | None = None,
    short: bool | None = None,
    kv_scales: Any = None,
    window: int | None = None,
) -> Launch:
    """All new tokens of a batch, causal, against a cache that already contains them
    (FlashAttention-2 and 3).

    out, q: [num_tokens, num_heads, head_size], sequence by sequence; query_starts: int32 [num_seqs
    + 1]; context_lens: int32 [num_seqs], the new tokens included; caches and places as in `decode`.
    kind: the kernel, None for the fastest that can run here; short: whether kind tma runs in its
    variant for short prompts, None to choose by their length. The caches' pointers may be replaced.
    """
    s = check_attention(out, q, k_cache, v_cache, kv_scales, window)
    num_seqs = view("context_lens", context_lens).shape[0]
    width = check_places(places, context_lens, num_seqs, s.paged)
    check("query_starts", query_starts, (num_seqs + 1,), ("int32",))
    check_range("max_query_len", max_query_len, 1, max(1, s.num_rows))
    buffers = pointers(out, q, k_cache, v_cache, places, query_starts, context_lens)
    kind = kind or fastest(s, buffers[2:4])
    if s.kv_scales and kind != "mma":
        raise ValueError(f"kind={kind}: reads no e4m3 (leave kind out)")
    if kind == "tma":
        check_takes(s, buffers[2:4])
        short = max_query_len <= SHORT_PROMPT if short is None else short
        return bind_tma(s, buffers, width, num_seqs, max_query_len, scale, short)
    return bind_mma(s, buffers, width, num_seqs, max_query_len, scale)


prefill = at_once(bind_prefill)


def fastest(s: Shapes, caches: list[int]) -> str:
    """The kind of kernel for caches at these addresses."""
    return "tma" if not s.kv_scales and has_wgmma(s.head_size) and takes(s, caches) else "mma"


def bind_mma(
    s: Shapes,
    pointers: list[int],
    width: int,
    num_seqs: int,
    max_query_len: int,
    scale: float | None,
) -> Launch:
    """A launch of prefill.cu whose arguments were checked; `pointers` as in `bind_tma`."""
    kernel, fp8 = load("prefill.cu", "prefill", **s.defines), bool(s.kv_scales)
    q_rows = 64 if s.head_size > 128 else 128
    rows = q_rows + (2 if fp8 else 4) * 64  # of Q, 64 of K and of V in two stages; e4m3: in one,
    shared_bytes = rows * (s.head_size + 8) * 2 + (
        2 * 64 * s.head_size if fp8 else 0
    )  # and as bytes
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    numbers = map(np.int32, (s.q_stride, s.num_kv_heads, width))
    arguments = (
        *pointers,
        log2_scale(scale, s.head_size),
        *numbers,
        s.kv_scales,
        np.int32(s.window),
    )
    grid = -(-max_query_len // q_rows), s.num_heads, num_seqs
    return Launch(kernel, grid, 128, arguments, shared_bytes)


def has_wgmma(head_size: int) -> bool:
    """True if warpgroup products run on the current device for this head size."""
    return head_size in (64, 128) and compute_capability() == 90


def takes(s: Shapes, caches: Sequence[int]) -> bool:
    """True if prefill_tma.cu has these sizes, and whether caches at these addresses are rows of one
    map of memory.
    """
    return _has_rows(s, caches) and _fit_one_map(s, caches)


def _has_rows(s: Shapes, caches: Sequence[int]) -> bool:
    of_sizes = s.head_size in (64, 128) and s.block_size in (*BLOCK_SIZES, ENDLESS)
    return of_sizes and not any(cache % (s.head_size * 2) for cache in caches)


def _fit_one_map(s: Shapes, caches: Sequence[int]) -> bool:
    return max(caches) <= origin_of(caches) + (ROWS_OF_MAP - s.cache_rows) * s.head_size * 2


def check_takes(s: Shapes, caches: Sequence[int]) -> None:
    """Raise ValueError for caches that prefill_tma.cu would misread."""
    if not _has_rows(s, caches):
        raise ValueError(
            f"kind=tma: reads head sizes 64 and 128, blocks of {BLOCK_SIZES} slots and extents, in "
            f"caches that begin at multiples of a row of {s.head_size * 2} bytes (leave kind out)"
        )
    if not _fit_one_map(s, caches):
        raise ValueError(
            f"kind=tma: k_cache and v_cache are {max(caches) - min(caches)} bytes apart, too far "
            f"for one map of {ROWS_OF_MAP} rows (allocate both at once, or leave kind out)"
        )


def constants(group: int, block_size: int, short: bool, prefix: bool = False) -> dict[str, int]:
    """The kernel's compile-time constants, without the shape; a box is copied from memory at
    once.
    """
    box_rows = BOX_OF_EXTENT if block_size == ENDLESS else min(block_size, K_ROWS)
    return {
        "BOX_ROWS": box_rows,
        "SHORT": int(short),
        "PACK": int((short or prefix) and packed(group) > 1),
        "PREFIX": int(prefix),
    }


def bind_tma(
    s: Shapes,
    pointers: Sequence[int],
    width: int,
    num_seqs: int,
    max_query_len: int,
    scale: float | None,
    short: bool,
) -> Launch:
    """A launch of prefill_tma.cu whose arguments were checked.

    pointers: of out, q, K and V cache, places, query starts and context lengths.
    """
    share = s.num_heads // s.num_kv_heads
    heads = packed(share) if short else 1
    tiles, pairs = -(-max_query_len * heads // Q_ROWS), num_seqs * s.num_heads // heads
    longest = width * s.block_size if s.paged else max_query_len
    capacity = longest * s.head_size * 4 * s.num_kv_heads * heads // s.num_heads
    group = evenly(pairs, max(-(-ITEMS // tiles), L2_SHARE // capacity))
    chosen = constants(share, s.block_size, short)
    return _launch_tma(s, pointers, width, (num_seqs, tiles, group), scale, chosen)


def bind_prefix(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    places: Any,
    runs: Any,
    prefixes: Any,
    *,
    workspace: Workspace,
    max_run: int,
    scale: float | None = None,
) -> Launch:
    """Attention of decodes to what they share, read once for all (Juravsky et al. 2024, Hydragen).
    `bind_decode` with the same `workspace` and `prefixes` adds the rest of each.

    q, caches, places: as in `bind_decode`, blocks only. runs: int32 [num_runs + 1], the first
    sequence of each run, whose sequences have the same first blocks; empty runs are allowed.
    prefixes: int32 [num_seqs], tokens in those blocks, the same in a run. max_run: sequences of the
    longest run.
    """
    s = check_attention(None, q, k_cache, v_cache)
    width = check_places(places, prefixes, s.num_rows, s.paged)
    num_runs = view("runs", runs).shape[0] - 1
    check("runs", runs, (num_runs + 1,), ("int32",))
    check_range("max_run", max_run, 1, s.num_rows)
    buffers = [0, *pointers(q, k_cache, v_cache, places, runs, prefixes)]
    if not reads_prefixes(k_cache):
        raise ValueError("prefixes: kind=tma alone reads them (see `takes`), in blocks")
    check_takes(s, buffers[2:4])
    share, chunks = s.num_heads // s.num_kv_heads, chunks_of_prefix(s)
    heads = packed(share)
    tiles = -(-max_run * heads // Q_ROWS) * chunks
    sizes = num_runs, tiles, num_runs * s.num_heads // heads
    chosen = constants(share, s.block_size, short=False, prefix=True)
    partial = *pointers(workspace.part_o, workspace.part_state), np.int32(chunks)
    return _launch_tma(s, buffers, width, sizes, scale, chosen, partial)


prefix_attention = at_once(bind_prefix)


def reads_prefixes(k_cache: Any) -> bool:
    """True if `bind_prefix` reads caches of this shape here, whose blocks are parts of a tile or
    whole ones.
    """
    shape = view("k_cache", k_cache).shape
    return len(shape) == 4 and shape[2] in BLOCK_SIZES and has_wgmma(shape[3])


def _launch_tma(
    s: Shapes,
    pointers: Sequence[int],
    width: int,
    sizes: tuple[int, int, int],
    scale: float | None,
    chosen: dict[str, int],
    partial: Sequence[Any] = (0, 0, np.int32(0)),
) -> Launch:
    """A launch of prefill_tma.cu. sizes: sequences, tiles of each (sequence, heads) pair, pairs of
    a group. partial: where to write partial results, and how many of a row.
    """
    num_seqs, tiles, group = sizes
    kernel = load("prefill_tma.cu", "prefill", **s.defines, **chosen)
    shared_bytes = (
        7 * 128 * s.head_size * 2 + 192
    )  # Q, K and V in six stages, the output; and barriers
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    device, origin = require_gpu().cuda.runtime.getDevice(), origin_of(pointers[2:4])
    numbers = map(np.int32, (s.q_stride, s.num_kv_heads, width, num_seqs, tiles, group, s.window))
    rows = int(rows_of_memory(device, origin, s.head_size, chosen["BOX_ROWS"]).data.ptr)
    counter = next(
        counters(device)[1]
    )  # which none of the last NUM_COUNTERS - 1 launches uses; it ends as zero
    factor = log2_scale(scale, s.head_size)
    arguments = (*pointers, rows, origin, counter, factor, *numbers, *partial)
    heads = s.num_heads // s.num_kv_heads if chosen["PACK"] else 1
    grid = min(tiles * num_seqs * s.num_heads // heads, multiprocessors())
    return Launch(kernel, (grid,), NUM_THREADS, arguments, shared_bytes)


def evenly(pairs: int, most: int) -> int:
    """A group size from most / 2 to `most` pairs whose last group is not much smaller than the
    others.
    """
    most = min(pairs, most)
    sizes = range(-(-pairs // -(-pairs // most)), most // 2, -1)
    return next((size for size in sizes if (pairs % size or size) >= 0.9 * size), sizes[0])


def origin_of(caches: Sequence[int]) -> int:
    """The first address of the map of memory: at least 64 GiB below the lower of K and V cache, so
    that it covers other caches too.
    """
    return max(0, (min(caches) >> 36) - 1) << 36


@cache
def rows_of_memory(device: int, origin: int, head_size: int, box_rows: int) -> Any:
    """A map of memory from `origin` on as rows of a head, in boxes of box_rows by 64 values,
    128-byte swizzled.
    """
    bytes_of_map = np.zeros(MAP_BYTES + MAP_ALIGN, np.uint8)
    at = -bytes_of_map.ctypes.data % MAP_ALIGN
    encoded = bytes_of_map[at : at + MAP_BYTES]
    sizes, strides, box = (head_size, ROWS_OF_MAP), (head_size * 2,), (64, box_rows)
    code = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(encoded.ctypes.data),
        UINT16,
        2,
        ctypes.c_void_p(origin),
        (ctypes.c_uint64 * 2)(*sizes),
        (ctypes.c_uint64 * 1)(*strides),
        (ctypes.c_uint32 * 2)(*box),
        (ctypes.c_uint32 * 2)(1, 1),
        NO_INTERLEAVE,
        SWIZZLE_128,
        L2_256,
        ZEROS,
    )
    if code:
        raise ValueError(
            f"the driver refuses a tensor map of {sizes} by {strides} bytes in boxes of {box}: "
            f"error {code}"
        )
    there = require_gpu().asarray(encoded)
    require_gpu().cuda.get_current_stream().synchronize()
    return there


@cache
def counters(device: int) -> tuple[Any, Iterator[int]]:
    """Zeroed counters of a device, and the endless order in which launches take them."""
    cupy = require_gpu()
    capacity = cupy.zeros((NUM_COUNTERS, 2), "int32")
    cupy.cuda.get_current_stream().synchronize()
    return capacity, cycle(range(capacity.data.ptr, capacity.data.ptr + capacity.nbytes, 8))
