"""Launch wrapper of ragged paged prefill, which chooses the fastest kernel that can run.

tma: prefill_tma.cu, on Hopper, head sizes 64 and 128, blocks of 8 to 256; mma: prefill.cu, anywhere, and the only one
for caches of e4m3.
"""

from typing import Any

import numpy as np

from testbed.kernels.launch import arrays
from testbed.kernels.launch.attention import Shapes, check_attention, check_tables, log2_scale
from testbed.kernels.launch.compile import compute_capability, load
from testbed.kernels.launch.launch import Launch, at_once
from testbed.kernels.launch.prefill_tma import bind_tma, takes

SHORT_PROMPT = 256  # new tokens up to which heads that share a kv head share thread blocks (prefill_tma.cu, PACK)


def bind_paged_prefill(
    out: Any, q: Any, k_cache: Any, v_cache: Any, block_tables: Any, query_starts: Any, context_lens: Any, *,
    max_query_len: int, scale: float | None = None, kind: str | None = None, pack: bool | None = None,
    kv_scales: Any = None, window: int | None = None,
) -> Launch:  # fmt: skip
    """All new tokens of a batch, causal, against a paged cache that already contains them (FlashAttention-2 and 3).

    out, q: [num_tokens, num_heads, head_size], sequence by sequence; query_starts: int32 [num_seqs + 1];
    context_lens: int32 [num_seqs], the new tokens included; caches and block_tables as in `paged_decode`.
    kind: the kernel, None for the fastest that can run here; pack: whether heads share thread blocks in kind tma, None
    to choose by the length of the prompts.
    The caches' pointers may be replaced.
    """
    s = check_attention(out, q, k_cache, v_cache, kv_scales, window)
    num_seqs = arrays.view("context_lens", context_lens).shape[0]
    tables = check_tables(block_tables, context_lens, num_seqs)
    arrays.check(arrays.view("query_starts", query_starts), (num_seqs + 1,), ("int32",))
    arrays.check_range("max_query_len", max_query_len, 1, max(1, s.num_rows))
    buffers = (out, q, k_cache, v_cache, block_tables, query_starts, context_lens)
    pointers = [arrays.view("", buffer).pointer for buffer in buffers]
    kind = kind or fastest(s, pointers[2:4])
    if kind == "tma":
        if s.kv_scales:
            raise ValueError("kind=tma: reads no e4m3 (leave kind out)")
        pack = max_query_len <= SHORT_PROMPT if pack is None else pack
        return bind_tma(s, pointers, tables.shape[1], num_seqs, max_query_len, scale, pack)
    return _bind_mma(s, pointers, tables.shape[1], num_seqs, max_query_len, scale)


paged_prefill = at_once(bind_paged_prefill)


def fastest(s: Shapes, caches: list[int]) -> str:
    """The kind of kernel for caches at these addresses."""
    return "tma" if not s.kv_scales and has_wgmma(s.head_size) and takes(s, caches) else "mma"


def _bind_mma(
    s: Shapes, pointers: list[int], max_blocks: int, num_seqs: int, max_query_len: int, scale: float | None
) -> Launch:
    kernel = load("prefill.cu", "prefill", **s.defines, BLOCK_SIZE=s.block_size)
    kernel.max_dynamic_shared_size_bytes = shared_bytes = mma_shared_bytes(s.head_size, s.kv_scales > 0)
    grid = (-(-max_query_len // mma_q_rows(s.head_size)), s.num_heads, num_seqs)
    numbers = (s.q_stride, s.num_kv_heads, max_blocks)
    arguments = (*pointers, log2_scale(scale, s.head_size), *map(np.int32, numbers), *s.last_arguments)
    return Launch(kernel, grid, (128,), arguments, shared_bytes)


def has_wgmma(head_size: int) -> bool:
    """Whether warpgroup products run on the current device for this head size."""
    return head_size in (64, 128) and compute_capability() == 90


def mma_q_rows(head_size: int) -> int:
    """New tokens per thread block of prefill.cu (its Q_ROWS)."""
    return 64 if head_size > 128 else 128


def mma_shared_bytes(head_size: int, fp8: bool = False) -> int:
    """Dynamic shared memory of prefill.cu: rows of Q, 64 of K and of V in two stages; e4m3: in one, and as bytes."""
    rows = mma_q_rows(head_size) + (2 if fp8 else 4) * 64
    return rows * (head_size + 8) * 2 + (2 * 64 * head_size if fp8 else 0)
