"""Launch of the prefill kernel with roles (prefill_tma.cu): Hopper only, head sizes 64 and 128, blocks of 8 to 256."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.launch import arrays
from kernels.launch.attention import Shapes, log2_scale
from kernels.launch.compile import load, multiprocessors, require_gpu
from kernels.launch.tensor_map import tensor_map

Q_ROWS = K_ROWS = 128
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class TmaPlan:
    """How the kernel is built and its grid cut; see prefill_tma.cu.

    stays: thread blocks take items in turn; else there is one an item. l2_share: bytes of K and V that thread blocks
    running together should share through the L2 cache.
    """

    pingpong: bool = True
    lazy: bool = True
    stays: bool = True
    l2_share: int = 24 << 20


def takes(head_size: int, block_size: int) -> bool:
    """Whether the kernel has these sizes."""
    return head_size in (64, 128) and block_size in BLOCK_SIZES


def variant(s: Shapes, plan: TmaPlan) -> dict[str, int]:
    """Compile-time constants."""
    return {**s.defines, "BLOCK_SIZE": s.block_size, "PINGPONG": int(plan.pingpong), "LAZY": int(plan.lazy)}


def launch(
    s: Shapes, out: Any, q: Any, k_cache: Any, v_cache: Any, places: tuple[Any, Any, Any], max_blocks: int,
    num_seqs: int, max_query_len: int, scale: float | None, plan: TmaPlan,
) -> None:  # fmt: skip
    """Arguments are checked by `paged_prefill`; places: block tables, query starts, context lengths."""
    kernel = load("prefill_tma.cu", "prefill", **variant(s, plan))
    shared_bytes = shared_memory(s.head_size)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    pointer = [arrays.view("", a).pointer for a in (out, q, k_cache, v_cache, *places)]
    maps = (queries_map(s, pointer[1]), cache_map(s, pointer[2]), cache_map(s, pointer[3]))
    tiles, pairs = -(-max_query_len // Q_ROWS), num_seqs * s.num_heads
    room = max_blocks * s.block_size * s.head_size * 4 * s.num_kv_heads // s.num_heads
    numbers = (s.num_kv_heads, max_blocks, num_seqs, tiles, min(pairs, max(8, plan.l2_share // room)))
    grid = tiles * pairs
    if plan.stays:
        grid = min(grid, multiprocessors(require_gpu().cuda.runtime.getDevice()))
    arguments = (pointer[0], *maps, *pointer[4:], log2_scale(scale, s.head_size), *map(np.int32, numbers))
    with arrays.stream_of(q):
        kernel((grid,), (384,), arguments, shared_mem=shared_bytes)


def queries_map(s: Shapes, pointer: int) -> Any:
    """Q as 128 tokens of one head at a time."""
    sizes, strides = (s.head_size, s.num_heads, s.num_rows), (s.head_size * 2, s.q_stride * 2)
    return tensor_map(pointer, sizes, strides, (64, 1, Q_ROWS))


def cache_map(s: Shapes, pointer: int) -> Any:
    """A cache as blocks of one head, or 128 rows of a larger one."""
    rows = s.num_blocks * s.num_kv_heads * s.block_size
    return tensor_map(pointer, (s.head_size, rows), (s.head_size * 2,), (64, min(s.block_size, K_ROWS)))


def shared_memory(head_size: int) -> int:
    """Q, two stages of K and of V, the output on its way out, 128 rows each; and barriers."""
    return 6 * 128 * head_size * 2 + 128
