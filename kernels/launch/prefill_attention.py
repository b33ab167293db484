"""Launch wrapper of ragged paged prefill, and which of its kernels is the fastest that can run.

tma: prefill_tma.cu, on Hopper, head sizes 64 and 128, blocks of 8 to 256; wgmma: prefill_wgmma.cu, any block size; mma:
prefill.cu, anywhere.
"""

from typing import Any

import numpy as np

from kernels.launch import arrays, checks
from kernels.launch.attention import Shapes, check_attention, check_tables, log2_scale
from kernels.launch.compile import load, require_gpu
from kernels.launch.launch import Launch
from kernels.launch.prefill_tma import TmaPlan, arranged, takes

KINDS = ("tma", "wgmma", "mma")
L2_SHARE = 24 << 20  # bytes of K and V that thread blocks running together should share through the L2 cache
SHORT_PROMPT = 256  # new tokens up to which heads that share a kv head share thread blocks (prefill_tma.cu, PACK)
SHORT = 192  # tokens up to which two thread blocks on a multiprocessor beat larger ones with more to overlap


def paged_prefill(
    out: Any, q: Any, k_cache: Any, v_cache: Any, block_tables: Any, query_starts: Any, context_lens: Any, *,
    max_query_len: int, scale: float | None = None, kind: str | None = None, plan: TmaPlan | None = None,
    check_ids: bool = False,
) -> None:  # fmt: skip
    """All new tokens of a batch, causal, against a paged cache that already holds them (FlashAttention-2 and 3).

    out, q: [num_tokens, num_heads, head_size], sequences one after the other; query_starts: int32 [num_seqs + 1];
    context_lens: int32 [num_seqs], the new tokens included; caches and block_tables as in `paged_decode`.
    kind: which kernel, None for the fastest that can run here; plan: how that of kind tma is cut.
    """
    bind_paged_prefill(
        out, q, k_cache, v_cache, block_tables, query_starts, context_lens, max_query_len=max_query_len, scale=scale,
        kind=kind, plan=plan, check_ids=check_ids,
    )(arrays.stream_pointer(q))  # fmt: skip


def bind_paged_prefill(
    out: Any, q: Any, k_cache: Any, v_cache: Any, block_tables: Any, query_starts: Any, context_lens: Any, *,
    max_query_len: int, scale: float | None = None, kind: str | None = None, plan: TmaPlan | None = None,
    check_ids: bool = False,
) -> Launch:  # fmt: skip
    """As paged_prefill; its caches' pointers may be replaced."""
    s = check_attention(out, q, k_cache, v_cache)
    num_seqs = arrays.view("context_lens", context_lens).shape[0]
    tables = check_tables(block_tables, context_lens, num_seqs)
    arrays.check(arrays.view("query_starts", query_starts), (num_seqs + 1,), ("int32",))
    arrays.check_range("max_query_len", max_query_len, 1, max(1, s.num_rows))
    if check_ids:
        checks.check_block_ids(block_tables, context_lens, s.block_size, s.num_blocks)
    buffers = (out, q, k_cache, v_cache, block_tables, query_starts, context_lens)
    pointers = [arrays.view("", buffer).pointer for buffer in buffers]
    longest = max(max_query_len, tables.shape[1] * s.block_size)
    kind = kind or fastest(s, pointers[2:4], longest)
    if kind == "tma":
        chosen = plan or TmaPlan(pack=max_query_len <= SHORT_PROMPT)
        launch = arranged(s, pointers, tables.shape[1], num_seqs, max_query_len, scale, chosen)
    else:
        launch = _arranged(kind, s, pointers, tables.shape[1], num_seqs, max_query_len, scale)
    kernel, grid, block, arguments, shared_bytes = launch
    return Launch(kernel, grid, block, arguments, shared_bytes)


def fastest(s: Shapes, caches: list[int], longest: int) -> str:
    """The kind of kernel for contexts up to `longest` and caches at these addresses."""
    if not has_wgmma(s.head_size):
        return "mma"
    if takes(s, caches):
        return "tma"
    return "mma" if longest <= SHORT else "wgmma"


def _arranged(
    kind: str, s: Shapes, pointers: list[int], max_blocks: int, num_seqs: int, max_query_len: int, scale: float | None
) -> tuple[Any, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int]:
    """Kernel, grid, block, arguments and bytes of shared memory."""
    wgmma = kind == "wgmma"
    kernel = load("prefill_wgmma.cu" if wgmma else "prefill.cu", "prefill", **s.defines, BLOCK_SIZE=s.block_size)
    shared_bytes = (wgmma_shared_bytes if wgmma else mma_shared_bytes)(s.head_size)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    grid: tuple[int, ...]
    numbers, threads = [s.q_stride, s.num_kv_heads, max_blocks], 256 if wgmma else 128
    if wgmma:
        tiles, pairs = -(-max_query_len // 128), num_seqs * s.num_heads
        room = max_blocks * s.block_size * s.head_size * 4 * s.num_kv_heads // s.num_heads
        numbers += [num_seqs, tiles, min(pairs, max(8, L2_SHARE // room))]
        grid = (tiles * pairs,)
    else:
        grid = (-(-max_query_len // mma_q_rows(s.head_size)), s.num_heads, num_seqs)
    arguments = (*pointers, log2_scale(scale, s.head_size), *map(np.int32, numbers))
    return kernel, grid, (threads,), arguments, shared_bytes


def has_wgmma(head_size: int) -> bool:
    """Whether warpgroup products run on the current device for this head size."""
    return head_size in (64, 128) and require_gpu().cuda.Device().compute_capability == "90"


def mma_q_rows(head_size: int) -> int:
    """New tokens per thread block of prefill.cu (its Q_ROWS)."""
    return 64 if head_size > 128 else 128


def mma_shared_bytes(head_size: int) -> int:
    """Dynamic shared memory of prefill.cu: Q rows and two stages of 64 rows of K and of V, padded."""
    return (mma_q_rows(head_size) + 4 * 64) * (head_size + 8) * 2


def wgmma_shared_bytes(head_size: int) -> int:
    """Dynamic shared memory of prefill_wgmma.cu: 128 rows of Q and two stages of 128 rows of K and of V."""
    return 5 * 128 * head_size * 2
