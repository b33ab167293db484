"""Launch wrapper of the paper's decode design (section 5.1), which serves to measure its cost."""

from typing import Any

import numpy as np

from testbed.kernels.launch import arrays
from testbed.kernels.launch.attention import HEAD_SIZES, MAX_BLOCK_SIZE, check_tables, log2_scale
from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import Launch

SHARED_LIMIT = 200 << 10  # bytes of scores that fit a thread block: those of 51,200 slots


def paper_decode(
    out: Any, q: Any, k_cache: Any, v_cache: Any, block_tables: Any, context_lens: Any, *, max_context_len: int,
    scale: float | None = None,
) -> None:  # fmt: skip
    """One warp per block, scores of the whole context in shared memory.

    out, q: [num_seqs, num_heads, head_size]; k_cache: [num_blocks, num_kv_heads, head_size / 8, block_size, 8] as
    `write_cache(paper_layout=True)` fills it; v_cache: [num_blocks, num_kv_heads, head_size, block_size];
    block_tables: int32 [num_seqs, max_blocks]; context_lens: int32 [num_seqs], none above max_context_len.
    """
    queries, values = arrays.view("q", q), arrays.view("v_cache", v_cache)
    arrays.check(queries, (None, None, None), arrays.HALF, strided_dims=1, align=16)
    num_seqs, num_heads, head_size = queries.shape
    if head_size not in HEAD_SIZES:
        raise ValueError(f"q: head size {head_size} is not one of {HEAD_SIZES}")
    arrays.check(arrays.view("out", out), queries.shape, (queries.dtype,), align=16)
    arrays.check(values, (None, None, head_size, None), (queries.dtype,), align=16)
    num_blocks, num_kv_heads, _, block_size = values.shape
    keys_shape = (num_blocks, num_kv_heads, head_size // 8, block_size, 8)
    arrays.check(arrays.view("k_cache", k_cache), keys_shape, (queries.dtype,), align=16)
    if num_heads % num_kv_heads:
        raise ValueError(f"q: {num_heads} heads are no multiple of v_cache's {num_kv_heads} kv heads")
    arrays.check_range("v_cache: block size", block_size, 1, MAX_BLOCK_SIZE)
    if block_size & (block_size - 1):
        raise ValueError(f"v_cache: this design needs a power of two as block size, got {block_size}")
    arrays.check_range("max_context_len", max_context_len, 0, SHARED_LIMIT // 4 - MAX_BLOCK_SIZE)
    tables = check_tables(block_tables, context_lens, num_seqs)
    constants = {"HEAD_SIZE": head_size, "GROUP": num_heads // num_kv_heads, "BLOCK_SIZE": block_size}
    kernel = load("paper_decode.cu", "paper_decode", **constants, BF16=int(queries.dtype == "bfloat16"))
    kernel.max_dynamic_shared_size_bytes = SHARED_LIMIT
    pointers = [arrays.view("", a).pointer for a in (out, q, k_cache, v_cache, block_tables, context_lens)]
    numbers = (log2_scale(scale, head_size), *map(np.int32, (queries.strides[0], num_kv_heads, tables.shape[1])))
    capacity = shared_bytes(max_context_len, block_size)
    Launch(kernel, (num_heads, num_seqs), (128,), (*pointers, *numbers), capacity)(arrays.stream_pointer(q))


def shared_bytes(max_context_len: int, block_size: int) -> int:
    """Bytes of the scores of whole blocks."""
    return -(-max_context_len // block_size) * block_size * 4
