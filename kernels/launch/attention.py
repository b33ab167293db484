"""Launch wrappers of paged and contiguous decode, and the checks that all attention kernels share.

They check every argument, choose a variant and launch it on the caller's stream. Once a variant is compiled nothing
here waits, and nothing allocates if a workspace is passed, so after one warm-up call a launch can be captured in a
CUDA graph. Block ids live on the device, and reading them would wait for it: they are checked with `check_ids=True`
only. torch and CuPy arrays are used in place; float16 and bfloat16, accumulation in fp32.

Cache layout: [num_blocks, num_kv_heads, block_size, head_size], K and V apart.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.launch import arrays, checks
from kernels.launch.arrays import HALF, View
from kernels.launch.compile import load, multiprocessors, require_gpu
from kernels.launch.decode_plan import MAX_CHUNKS, MAX_WAVE, DecodePlan, plan_decode
from kernels.launch.launch import Launch

HEAD_SIZES = (64, 80, 96, 128, 256)
MAX_BLOCK_SIZE = 256
K_CACHE, V_CACHE = 2, 3  # places of the caches among the arguments of all attention kernels


@dataclass(frozen=True, slots=True)
class Workspace:
    """Partial results of split contexts (fp32) and counters (int32, zero between launches)."""

    part_o: Any
    part_state: Any
    counters: Any


def decode_workspace(q: Any, num_chunks: int) -> Workspace:
    """Room for decode launches with queries like `q` over up to `num_chunks` chunks a sequence."""
    num_seqs, num_heads, head_size = q.shape
    rows = num_seqs * num_heads * num_chunks if num_chunks > 1 else 1
    shapes = {"part_o": (rows, head_size), "part_state": (rows, 2), "counters": (num_seqs * num_heads,)}
    if arrays.is_torch(q):
        import torch

        kinds = {"part_o": torch.float32, "part_state": torch.float32, "counters": torch.int32}
        return Workspace(**{name: q.new_zeros(shape, dtype=kinds[name]) for name, shape in shapes.items()})
    zeros = require_gpu().zeros
    kinds = {"part_o": "float32", "part_state": "float32", "counters": "int32"}
    return Workspace(**{name: zeros(shape, kinds[name]) for name, shape in shapes.items()})


def paged_decode(
    out: Any, q: Any, k_cache: Any, v_cache: Any, block_tables: Any, context_lens: Any, *, max_context_len: int,
    scale: float | None = None, plan: DecodePlan | None = None, workspace: Workspace | None = None,
    check_ids: bool = False,
) -> None:  # fmt: skip
    """One query token per sequence against a paged cache (PagedAttention; split contexts as in Flash-Decoding).

    out, q: [num_seqs, num_heads, head_size]; k_cache, v_cache: [num_blocks, num_kv_heads, block_size, head_size];
    block_tables: int32 [num_seqs, max_blocks]; context_lens: int32 [num_seqs], none above max_context_len.
    """
    bind_paged_decode(
        out, q, k_cache, v_cache, block_tables, context_lens, max_context_len=max_context_len, scale=scale, plan=plan,
        workspace=workspace, check_ids=check_ids,
    )(arrays.stream_pointer(q))  # fmt: skip


def bind_paged_decode(
    out: Any, q: Any, k_cache: Any, v_cache: Any, block_tables: Any, context_lens: Any, *, max_context_len: int,
    scale: float | None = None, plan: DecodePlan | None = None, workspace: Workspace | None = None,
    check_ids: bool = False,
) -> Launch:  # fmt: skip
    """As paged_decode; its caches' pointers may be replaced."""
    s = check_attention(out, q, k_cache, v_cache)
    tables = check_tables(block_tables, context_lens, s.num_rows)
    if tables.shape[1] * s.block_size < max_context_len:
        raise ValueError(
            f"block_tables: {tables.shape[1]} blocks of {s.block_size} cannot hold {max_context_len} tokens"
        )
    if check_ids:
        checks.check_block_ids(block_tables, context_lens, s.block_size, s.num_blocks)
    places = (block_tables, context_lens, tables.shape[1])
    constants = {"PAGED": 1, "BLOCK_SIZE": s.block_size}
    return _bind_decode(s, (out, q, k_cache, v_cache), places, constants, max_context_len, scale, plan, workspace)


def contiguous_decode(
    out: Any, q: Any, k_cache: Any, v_cache: Any, extents: Any, context_lens: Any, *, max_context_len: int,
    scale: float | None = None, plan: DecodePlan | None = None, workspace: Workspace | None = None,
    check_ids: bool = False,
) -> None:  # fmt: skip
    """The same arithmetic on one extent per sequence (as FasterTransformer keeps them): paging is the difference.

    k_cache, v_cache: [num_slots, num_kv_heads, head_size] seen as a pool of slots; an extent of `capacity` slots
    from `first` is laid out [num_kv_heads, capacity, head_size]. extents: int32 [num_seqs, 2] = first, capacity.
    """
    bind_contiguous_decode(
        out, q, k_cache, v_cache, extents, context_lens, max_context_len=max_context_len, scale=scale, plan=plan,
        workspace=workspace, check_ids=check_ids,
    )(arrays.stream_pointer(q))  # fmt: skip


def bind_contiguous_decode(
    out: Any, q: Any, k_cache: Any, v_cache: Any, extents: Any, context_lens: Any, *, max_context_len: int,
    scale: float | None = None, plan: DecodePlan | None = None, workspace: Workspace | None = None,
    check_ids: bool = False,
) -> Launch:  # fmt: skip
    """As contiguous_decode; its caches' pointers may be replaced."""
    pool = arrays.view("k_cache", k_cache)
    arrays.check(pool, (None, None, None), HALF, align=16)
    s = check_attention(out, q, k_cache, v_cache, pool=pool)
    arrays.check(arrays.view("extents", extents), (s.num_rows, 2), ("int32",))
    arrays.check(arrays.view("context_lens", context_lens), (s.num_rows,), ("int32",))
    if check_ids:
        checks.check_extents(extents, context_lens, pool.shape[0])
    places = (extents, context_lens, 2)
    constants = {"PAGED": 0, "BLOCK_SIZE": 1}
    return _bind_decode(s, (out, q, k_cache, v_cache), places, constants, max_context_len, scale, plan, workspace)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Counts common to all attention kernels, taken from checked arguments."""

    num_rows: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_blocks: int
    block_size: int
    q_stride: int
    bf16: bool

    @property
    def defines(self) -> dict[str, int]:
        """Compile-time constants that every attention source takes."""
        return {"HEAD_SIZE": self.head_size, "GROUP": self.num_heads // self.num_kv_heads, "BF16": int(self.bf16)}


def check_attention(out: Any, q: Any, k_cache: Any, v_cache: Any, pool: View | None = None) -> Shapes:
    """Checks queries, output and caches; `pool` says that the caches are pools of slots instead of blocks."""
    queries, keys = arrays.view("q", q), pool or arrays.view("k_cache", k_cache)
    arrays.check(queries, (None, None, None), HALF, strided_dims=1, align=16)
    num_rows, num_heads, head_size = queries.shape
    if head_size not in HEAD_SIZES:
        raise ValueError(f"q: head size {head_size} is not one of {HEAD_SIZES}")
    arrays.check(arrays.view("out", out), queries.shape, (queries.dtype,), align=16)
    shape = (None, None, head_size) if pool else (None, None, None, head_size)
    arrays.check(keys, shape, (queries.dtype,), align=16)
    arrays.check(arrays.view("v_cache", v_cache), keys.shape, (queries.dtype,), align=16)
    num_blocks, num_kv_heads, block_size = (*keys.shape[:2], 1 if pool else keys.shape[2])
    if num_heads % num_kv_heads:
        raise ValueError(f"q: {num_heads} heads are no multiple of k_cache's {num_kv_heads} kv heads")
    if num_blocks * num_kv_heads * block_size >= 1 << 31:
        raise ValueError(f"k_cache: {num_blocks * num_kv_heads * block_size} rows of a head, at most {2**31 - 1}")
    arrays.check_range("k_cache: block size", block_size, 1, MAX_BLOCK_SIZE)
    bf16 = queries.dtype == "bfloat16"
    return Shapes(num_rows, num_heads, num_kv_heads, head_size, num_blocks, block_size, queries.strides[0], bf16)


def check_tables(block_tables: Any, context_lens: Any, num_seqs: int) -> View:
    """Checks a block table and the context lengths beside it."""
    arrays.check(arrays.view("context_lens", context_lens), (num_seqs,), ("int32",))
    return arrays.check(arrays.view("block_tables", block_tables), (num_seqs, None), ("int32",))


def log2_scale(scale: float | None, head_size: int) -> np.float32:
    """The softmax scale for exponentials of base 2; 1 / sqrt(head_size) by default."""
    return np.float32((head_size**-0.5 if scale is None else scale) * math.log2(math.e))


def _bind_decode(
    s: Shapes, tensors: tuple[Any, ...], places: tuple[Any, Any, int], constants: dict[str, int],
    max_context_len: int, scale: float | None, plan: DecodePlan | None, workspace: Workspace | None,
) -> Launch:  # fmt: skip
    groups = s.num_kv_heads * -(-s.num_heads // s.num_kv_heads // 8)
    num_sms = multiprocessors(require_gpu().cuda.runtime.getDevice())
    plan = plan or plan_decode(s.num_rows, groups, s.head_size, max_context_len, num_sms)
    chunks = plan.num_chunks(max_context_len)
    workspace = workspace or decode_workspace(tensors[1], chunks)
    rows = s.num_rows * s.num_heads
    room = arrays.view("workspace.part_o", workspace.part_o).shape[0]
    if chunks > MAX_CHUNKS:
        raise ValueError(f"plan: {chunks} chunks of {plan.chunk_tokens} tokens, at most {MAX_CHUNKS}")
    if chunks > 1 and room < rows * chunks:
        raise ValueError(f"workspace: room for {room} partial rows, the launch needs {rows * chunks}")
    together = num_sms * plan.ctas_per_sm
    if plan.wave and s.num_rows > min(MAX_WAVE, together // groups):
        raise ValueError(f"plan: a wave holds {min(MAX_WAVE, together // groups)} sequences, not {s.num_rows}")
    constants |= plan.constants
    kernel = load("decode.cu", "decode", **s.defines, **constants)
    buffers = (*tensors, *places[:2], workspace.part_o, workspace.part_state, workspace.counters)
    pointers = [arrays.view("", buffer).pointer for buffer in buffers]
    numbers = (s.q_stride, s.num_kv_heads, places[2], plan.chunk_tokens, s.num_rows, chunks, together // groups)
    grid = (together,) if plan.wave else (groups, s.num_rows, chunks)
    arguments = (*pointers, log2_scale(scale, s.head_size), *map(np.int32, numbers))
    return Launch(kernel, grid, (plan.num_warps * 32,), arguments)
