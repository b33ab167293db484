"""Launch wrappers of decode attention, and the checks that all attention kernels share.

The wrappers check every argument, choose a variant and launch it on the caller's stream. Once a
variant is compiled no call waits, and none allocates if a workspace is passed, so after one warm-up
call a launch can be captured in a CUDA graph. Block ids are on the device, if reading them would
wait: the caller checks them. torch and CuPy arrays are used in place; float16 and bfloat16,
accumulation in fp32.

k_cache, v_cache and places, which say where a sequence's tokens lie: blocks: [num_blocks,
num_kv_heads, block_size, head_size]; block tables, int32 [num_seqs, max_blocks]. extents:
[num_slots, num_kv_heads, head_size], a pool of slots; int32 [num_seqs, 2] = first slot and capacity
of a sequence's extent, which is laid out [num_kv_heads, capacity, head_size], as in
FasterTransformer. The caches have the type of the queries; or they are e4m3 with kv_scales, float32
[2, num_kv_heads], by which a cached value of K and of V is multiplied. window: the last tokens that
a token reads, itself included; table entries of blocks before them may have any valid id.
"""

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from testbed.kernels.launch import launch
from testbed.kernels.launch.compile import compute_capability, load, multiprocessors, require_gpu
from testbed.kernels.launch.decode_plan import (
    MAX_CHUNKS,
    MAX_WAVE,
    DecodePlan,
    plan_decode,
    prefix_chunks,
)
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

HEAD_SIZES = (64, 80, 96, 128, 256)
FP8_SIZES = (64, 128, 256)  # head sizes with caches of e4m3
MAX_BLOCK_SIZE = 256
ENDLESS = 1 << 30  # of an extent, which kernels read as one block
SHARED_LIMIT = 200 << 10  # bytes of scores that fit a thread block: those of 51,200 slots
K_CACHE, V_CACHE = 2, 3  # indexes of the caches among the arguments of all attention kernels
KV_SCALES = -2  # and of their scales, in the kernels that take some


class Workspace(NamedTuple):
    """Partial results of split contexts (fp32) and counters (int32, zero between launches)."""

    part_o: Any
    part_state: Any
    counters: Any


def decode_workspace(q: Any, num_chunks: int) -> Workspace:
    """A workspace for decode launches with queries like `q` over up to `num_chunks` chunks per
    sequence.
    """
    num_seqs, num_heads, _ = q.shape
    return workspace_of_rows(q, num_seqs * num_heads * num_chunks if num_chunks > 1 else 1)


def workspace_of_rows(q: Any, rows: int) -> Workspace:
    """A workspace for `rows` rows of partial results."""
    num_seqs, num_heads, head_size = q.shape

    def zeros(kind: str, *shape: int) -> Any:
        if launch.is_torch(q):
            return q.new_zeros(shape, dtype=getattr(sys.modules["torch"], kind))
        return require_gpu().zeros(shape, kind)

    return Workspace(
        zeros("float32", rows, head_size),
        zeros("float32", rows, 2),
        zeros("int32", num_seqs * num_heads),
    )


def bind_decode(
    out: Any,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    places: Any,
    context_lens: Any,
    *,
    max_context_len: int,
    scale: float | None = None,
    plan: DecodePlan | None = None,
    workspace: Workspace | None = None,
    kv_scales: Any = None,
    window: int | None = None,
    prefixes: Any = None,
) -> Launch:
    """PagedAttention: one query token per sequence; contexts are split as in Flash-Decoding.

    out, q: [num_seqs, num_heads, head_size]; context_lens: int32 [num_seqs], none above
    max_context_len. Blocks and extents differ only by layout. The caches' pointers may be replaced.
    prefixes: int32 [num_seqs], tokens of each sequence to which a launch of `bind_prefix` with this
    workspace has attended, multiples of TILE; then max_context_len counts those behind them.
    """
    s = check_attention(out, q, k_cache, v_cache, kv_scales, window)
    width = check_places(places, context_lens, s.num_rows, s.paged)
    _check_width(s, width, max_context_len)
    division = divided(s, plan, max_context_len, has_prefixes=prefixes is not None)
    plan, needed = division.plan, partial_rows(s, division)
    workspace = workspace or workspace_of_rows(q, needed)
    _check_division(s, division, needed, workspace)
    prefixed = int(prefixes is not None)
    kernel = load("decode.cu", "decode", **s.defines, **plan.constants, PREFIXED=prefixed)
    counts = s.q_stride, s.num_kv_heads, width, plan.chunk_tokens, s.num_rows
    numbers = map(np.int32, (*counts, division.num_chunks, division.num_teams))
    addresses = pointers(out, q, k_cache, v_cache, places, context_lens, *workspace)
    first = *addresses, log2_scale(scale, s.head_size), *numbers
    of_prefix = *pointers(prefixes), np.int32(division.num_prefix_chunks)
    arguments = *first, *of_prefix, s.kv_scales, np.int32(s.window)
    return Launch(kernel, division.grid, plan.num_warps * 32, arguments)


class Division(NamedTuple):
    """The thread blocks among which a launch divides its contexts, and the most chunks of a
    context and of a prefix. num_teams: sequences that those of them that run at once can serve.
    """

    plan: DecodePlan
    grid: tuple[int, ...]
    num_chunks: int
    num_prefix_chunks: int
    num_teams: int


def divided(
    s: "Shapes", plan: DecodePlan | None, max_context_len: int, *, has_prefixes: bool
) -> Division:
    """The division by a plan, or by the usual one."""
    num_sms, groups = multiprocessors(), s.num_kv_heads * -(-s.num_heads // s.num_kv_heads // 8)
    sizes = s.num_rows, groups, s.head_size, max_context_len, num_sms
    plan = plan or plan_decode(*sizes, bool(s.kv_scales), s.window)
    chunks = plan.num_chunks(max_context_len, s.window)
    grid = plan.grid(s.num_rows, groups, chunks, num_sms)
    of_prefix = chunks_of_prefix(s) if has_prefixes else 0
    return Division(plan, grid, chunks, of_prefix, num_sms * plan.ctas_per_sm // groups)


def partial_rows(s: "Shapes", division: Division) -> int:
    """Rows of partial results: of each thread block at most two, of up to 8 heads each, if those
    have shares; else of each chunk if there are several, those of a prefix too.
    """
    rows, of_prefix = s.num_rows * s.num_heads, division.num_prefix_chunks
    if division.plan.shares:
        return 2 * division.grid[0] * min(8, s.num_heads // s.num_kv_heads) + rows * of_prefix
    chunks = division.num_chunks + of_prefix
    return rows * chunks if chunks > 1 else 1


def chunks_of_prefix(s: "Shapes") -> int:
    """The most chunks of a prefix that these rows share."""
    return prefix_chunks(s.num_rows, s.num_heads, s.num_kv_heads, multiprocessors())


def _check_width(s: "Shapes", width: int, max_context_len: int) -> None:
    """Raise ValueError unless block tables of this width hold the longest context."""
    if width * s.block_size < max_context_len:
        raise ValueError(
            f"places: {width} blocks of {s.block_size} slots, too few for {max_context_len} tokens"
        )


def _check_division(s: "Shapes", division: Division, needed: int, workspace: Workspace) -> None:
    """Raise ValueError unless the division and the workspace suit these shapes."""
    plan, most = division.plan, min(MAX_WAVE, division.num_teams)
    if division.num_chunks > MAX_CHUNKS:
        raise ValueError(
            f"plan: {division.num_chunks} chunks of {plan.chunk_tokens} tokens, at most "
            f"{MAX_CHUNKS}"
        )
    capacity = workspace.part_o.shape[0]
    if capacity < needed:
        raise ValueError(f"workspace: has {capacity} partial rows, the launch needs {needed}")
    if plan.wave and s.num_rows > most:
        raise ValueError(f"plan: {s.num_rows} sequences, a wave has at most {most}")


decode = at_once(bind_decode)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Counts common to all attention kernels, taken from checked arguments."""

    num_rows: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    cache_rows: int  # of a cache: slots times kv heads
    block_size: int  # ENDLESS: extents
    q_stride: int
    bf16: int
    kv_scales: int  # address; 0: the caches have the type of the queries
    window: int  # 0: none

    @property
    def paged(self) -> bool:
        """True if the caches are blocks."""
        return self.block_size != ENDLESS

    @property
    def defines(self) -> dict[str, int]:
        """Compile-time constants that every attention source takes."""
        shape = {
            "HEAD_SIZE": self.head_size,
            "GROUP": self.num_heads // self.num_kv_heads,
            "BF16": self.bf16,
        }
        where = {"PAGED": int(self.paged), "BLOCK_SIZE": self.block_size}
        return shape | where | {"FP8": int(self.kv_scales > 0), "WINDOWED": int(self.window > 0)}


def check_attention(
    out: Any, q: Any, k_cache: Any, v_cache: Any, kv_scales: Any = None, window: int | None = None
) -> Shapes:
    """The shapes of queries, output (None: of another type) and caches, in blocks or in rows.
    Raises ValueError if they do not go together, or have a type or an alignment that the kernels do
    not read. kv_scales: of a cache in e4m3; window: tokens that a query sees at most.
    """
    queries = _check_queries(out, q)
    num_rows, num_heads, head_size = queries.shape
    blocks = len(view("k_cache", k_cache).shape) != 3
    shape = (None, None, None, head_size) if blocks else (None, None, head_size)
    keys = check(
        "k_cache", k_cache, shape, (queries.dtype,) if kv_scales is None else FP8, align=16
    )
    check("v_cache", v_cache, keys.shape, (keys.dtype,), align=16)
    num_kv_heads, cache_rows = keys.shape[1], math.prod(keys.shape[:-1])
    if num_heads % num_kv_heads:
        raise ValueError(
            f"q: {num_heads} heads are no multiple of k_cache's {num_kv_heads} kv heads"
        )
    if cache_rows >= 1 << 31:
        raise ValueError(f"k_cache: {cache_rows} rows of a head, at most {2**31 - 1}")
    if blocks:
        check_range("k_cache: block size", keys.shape[2], 1, MAX_BLOCK_SIZE)
    if window is not None:
        check_range("window", window, 1, (1 << 31) - 1)
    return Shapes(
        num_rows=num_rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        cache_rows=cache_rows,
        block_size=keys.shape[2] if blocks else ENDLESS,
        q_stride=queries.strides[0],
        bf16=queries.bf16,
        kv_scales=check_scales(kv_scales, num_kv_heads, head_size),
        window=window or 0,
    )


def _check_queries(out: Any, q: Any) -> View:
    queries = check("q", q, (None, None, None), HALF, strided_dims=1, align=16)
    if queries.shape[2] not in HEAD_SIZES:
        raise ValueError(f"q: head size {queries.shape[2]} is not one of {HEAD_SIZES}")
    if out is not None:
        check("out", out, queries.shape, (queries.dtype,), align=16)
    return queries


def check_scales(kv_scales: Any, num_kv_heads: int, head_size: int) -> int:
    """The address of the scales of caches of e4m3; 0 for None."""
    if kv_scales is None:
        return 0
    if head_size not in FP8_SIZES:
        raise ValueError(
            f"kv_scales: no kernel of e4m3 for head size {head_size}, only for {FP8_SIZES}"
        )
    address = check("kv_scales", kv_scales, (2, num_kv_heads), ("float32",)).pointer
    capability = compute_capability()
    if capability < 89:
        raise ValueError(
            "kv_scales: e4m3 needs a GPU of compute capability 8.9 or more, this one has "
            f"{capability / 10}"
        )
    return address


def check_places(places: Any, context_lens: Any, num_seqs: int, paged: bool = True) -> int:
    """Check places and context lengths; returns the width of the places."""
    check("context_lens", context_lens, (num_seqs,), ("int32",))
    return check("places", places, (num_seqs, None if paged else 2), ("int32",)).shape[1]


def log2_scale(scale: float | None, head_size: int) -> np.float32:
    """The softmax scale for exponentials of base 2; 1 / sqrt(head_size) by default."""
    return np.float32((head_size**-0.5 if scale is None else scale) * math.log2(math.e))


def paper_decode(
    out: Any,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    places: Any,
    context_lens: Any,
    *,
    max_context_len: int,
    scale: float | None = None,
) -> None:
    """The paper's design (section 5.1), to measure its cost: a warp per block, scores of a context
    in shared memory.

    out, q: [num_seqs, num_heads, head_size]; k_cache: [num_blocks, num_kv_heads, head_size / 8,
    block_size, 8] as `write_cache(paper_layout=True)` fills it; v_cache: [num_blocks, num_kv_heads,
    head_size, block_size]; places: block tables; context_lens: int32 [num_seqs], none above
    max_context_len.
    """
    queries = _check_queries(out, q)
    num_seqs, num_heads, head_size = queries.shape
    num_kv_heads, block_size = _check_paper_caches(queries, k_cache, v_cache)
    check_range("max_context_len", max_context_len, 0, SHARED_LIMIT // 4 - MAX_BLOCK_SIZE)
    width = check_places(places, context_lens, num_seqs)
    constants = {
        "HEAD_SIZE": head_size,
        "GROUP": num_heads // num_kv_heads,
        "BLOCK_SIZE": block_size,
    }
    kernel = load("paper_decode.cu", "paper_decode", **constants, BF16=queries.bf16)
    kernel.max_dynamic_shared_size_bytes = SHARED_LIMIT
    addresses = pointers(out, q, k_cache, v_cache, places, context_lens)
    numbers = map(np.int32, (queries.strides[0], num_kv_heads, width))
    arguments = (*addresses, log2_scale(scale, head_size), *numbers)
    num_blocks = -(-max_context_len // block_size)
    score_bytes = num_blocks * block_size * 4
    bound = Launch(kernel, (num_heads, num_seqs), 128, arguments, score_bytes)
    bound(launch.stream_pointer(q))


def _check_paper_caches(queries: View, k_cache: Any, v_cache: Any) -> tuple[int, int]:
    """Check caches in the paper's layout; returns the number of kv heads and the block size."""
    _, num_heads, head_size = queries.shape
    values = check("v_cache", v_cache, (None, None, head_size, None), (queries.dtype,), align=16)
    num_blocks, num_kv_heads, _, block_size = values.shape
    keys_shape = (num_blocks, num_kv_heads, head_size // 8, block_size, 8)
    check("k_cache", k_cache, keys_shape, (queries.dtype,), align=16)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"q: {num_heads} heads are no multiple of v_cache's {num_kv_heads} kv heads"
        )
    check_range("v_cache: block size", block_size, 1, MAX_BLOCK_SIZE)
    if block_size & (block_size - 1):
        raise ValueError(
            f"v_cache: this design needs a power of two as block size, got {block_size}"
        )
    return num_kv_heads, block_size
