"""The division of a decode launch into thread blocks: a pure function of counts, testable without a
GPU.

The rules come from sweeps on an H200 over warps, residency and chunk length; kernels/results/ has
the results.
"""

import math
from dataclasses import dataclass, replace

TILE = 16  # tokens that a warp processes at once
MAX_WAVE = (
    32  # most sequences of a launch whose chunk length is computed on the device, one per lane
)
MAX_CHUNKS = 128  # of the second-stage reduction in decode.cu
MAX_PREFIX_CHUNKS = 8  # of them, those of a prefix
MOST_SHARES = MAX_CHUNKS - MAX_PREFIX_CHUNKS  # of a context
Q_ROWS = 128  # of a tile of queries in prefill_tma.cu
LEAST_SHARE = 256  # tokens
MOST_ROWS = 3  # of each thread block
SMALL_CHUNKS = 64  # of few heads of 64
# Bytes of K and V of a layer from which on decodes should read a prefix once that they share, and
# not again, mostly from the L2 cache: less takes no longer than a second launch
WORTH_SHARING = 64 << 20
CTAS_PER_SM = {
    64: 5,
    80: 4,
    96: 4,
    128: 3,
    256: 2,
}  # thread blocks of 4 warps whose registers fit without spilling


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Warps per thread block, resident thread blocks per multiprocessor, tokens per chunk of a
    context.

    wave: chunks are so long that all of them run at once, at least chunk_tokens (decode_work.cuh);
    only for batches of up to MAX_WAVE sequences that would all run at once without chunks.

    shares: as many thread blocks as run at once have an equal share each of all that the batch
    reads, at least chunk_tokens (decode_shares.cuh).
    """

    num_warps: int
    ctas_per_sm: int
    chunk_tokens: int
    wave: bool = False
    shares: bool = False

    @property
    def constants(self) -> dict[str, int]:
        """The compile-time constants of decode.cu, without the shape."""
        return {
            "NUM_WARPS": self.num_warps,
            "CTAS_PER_SM": self.ctas_per_sm,
            "WAVE": int(self.wave),
            "SHARES": int(self.shares),
        }

    def grid(self, num_seqs: int, groups: int, chunks: int, num_sms: int) -> tuple[int, ...]:
        """The thread blocks of a launch."""
        resident = num_sms * self.ctas_per_sm
        return (resident,) if self.wave or self.shares else (groups, num_seqs, chunks)

    def num_chunks(self, max_context_len: int, window: int) -> int:
        """The most chunks of what is read of a context of this length; a window (0: none) may begin
        inside a tile.
        """
        if self.shares:
            return MOST_SHARES
        most_read = min(max_context_len, window + TILE - 1) if window else max_context_len
        return max(1, -(-most_read // self.chunk_tokens))


def equal_shares(head_size: int, rows_per_sm: float = math.inf) -> DecodePlan:
    """The plan for lengths that only the device knows. Few rows a multiprocessor are cut into the
    fewest parts.
    """
    few = 8, 2 if head_size == 64 else 1
    warps, ctas = few if head_size == 64 or rows_per_sm <= 2 else (4, CTAS_PER_SM[head_size])
    return DecodePlan(warps, ctas, LEAST_SHARE, shares=True)


def packed(group: int) -> int:
    """Heads whose rows a tile of queries joins: all `group` heads of a kv head if that is a power
    of two up to 8, else 1.
    """
    return group if group in (2, 4, 8) else 1


def prefix_chunks(num_seqs: int, num_heads: int, num_kv_heads: int, num_sms: int) -> int:
    """Chunks of a prefix that sequences share: as many as fill the GPU, at most
    MAX_PREFIX_CHUNKS.
    """
    heads = packed(num_heads // num_kv_heads)
    tiles = num_heads // heads * -(-num_seqs * heads // Q_ROWS)
    return max(1, min(MAX_PREFIX_CHUNKS, num_sms // max(1, tiles)))


def plan_decode(
    num_seqs: int,
    groups: int,
    head_size: int,
    max_context_len: int,
    num_sms: int,
    fp8: bool = False,
    window: int = 0,
) -> DecodePlan:
    """The plan for a batch, for caches of a type and a window (tokens; 0: none). groups: kv heads x
    head tiles of a sequence. max_context_len: tokens of the longest sequence. num_sms:
    multiprocessors of the GPU.

    A window may begin inside a tile, so every chunk has a tile more, and the number of chunks
    stays.
    """
    longest = min(max_context_len, window or max_context_len)
    if not (fp8 or window) and _takes_shares(num_seqs * groups, head_size, longest, num_sms):
        return equal_shares(head_size, num_seqs * groups / num_sms)
    plan = _plan(num_seqs, groups, head_size, longest, num_sms, fp8)
    if window:
        plan = replace(plan, chunk_tokens=plan.chunk_tokens + TILE)
    return plan


def _plan(
    num_seqs: int, groups: int, head_size: int, max_context_len: int, num_sms: int, fp8: bool
) -> DecodePlan:
    """Split contexts only if sequences and heads alone do not fill the GPU, or one long context
    would end last.

    groups: kv heads x head tiles of a sequence. Split contexts have at least 8 chunks if ragged
    lengths matter, and enough to fill whole waves of resident thread blocks; one wave if two
    chunks each nearly fill it. Tokens of e4m3 are read in half the time, so chunks of a full batch
    are longer. Thread blocks of 2 warps end more evenly than twice as large ones if they
    nearly fill two waves.
    """
    rows = num_seqs * groups
    if head_size == 64 and rows <= 2 * num_sms:
        return _plan_small(rows, max_context_len, num_sms)
    num_warps, ctas = _thread_blocks(rows, head_size, max_context_len, num_sms, fp8)
    wave = (
        num_seqs <= MAX_WAVE
        and head_size == 128
        and max_context_len > 1024
        and num_sms * 0.9 <= rows * 2 <= num_sms
    )
    if wave:
        num_warps, ctas, chunk = 8, 1, max(256, -(-max_context_len // 16))
    else:
        chunk = _chunk_tokens(rows, num_sms * ctas, max_context_len, num_sms, fp8)
    step = TILE * num_warps
    chunk = max(chunk, -(-max_context_len // MAX_CHUNKS), step)
    return DecodePlan(num_warps, ctas, -(-chunk // step) * step, wave)


def _takes_shares(rows: int, head_size: int, max_context_len: int, num_sms: int) -> bool:
    """True if equal shares end sooner than chunks, however even or ragged lengths are: for at
    least one row a multiprocessor, and at most MOST_ROWS for each thread block that runs at once.
    """
    most = 2 * num_sms if head_size == 64 else MOST_ROWS * num_sms * CTAS_PER_SM[head_size]
    return head_size in (64, 128) and max_context_len > 1024 and num_sms <= rows <= most


def _thread_blocks(
    rows: int, head_size: int, max_context_len: int, num_sms: int, fp8: bool
) -> tuple[int, int]:
    """Warps of a thread block, and thread blocks of a multiprocessor: larger ones for few rows."""
    ctas = CTAS_PER_SM[head_size]
    few = head_size <= 128 and (
        rows * 4 <= num_sms or (rows * 2 <= num_sms and max_context_len <= 512)
    )
    if few:
        return 8, max(1, ctas // 2)
    share = rows / (2 * ctas * num_sms)  # of a wave of thread blocks of 2 warps
    many = share >= 1 and (
        max_context_len <= 256 or (max_context_len <= 1024 and 1.5 <= share <= 2 and not fp8)
    )
    return (2, 2 * ctas) if many else (4, ctas)


def _chunk_tokens(rows: int, resident: int, max_context_len: int, num_sms: int, fp8: bool) -> int:
    """Tokens of a chunk, before rounding; resident: the thread blocks that run at once."""
    if max_context_len <= 1024 and rows >= num_sms:
        return max_context_len
    if rows >= 5 * resident:
        return 2048
    chunks = resident * -(-8 * rows // resident) // rows
    least = 256 if rows < num_sms else 2048 if fp8 else 512
    return max(least, -(-max_context_len // chunks))


def _plan_small(rows: int, max_context_len: int, num_sms: int) -> DecodePlan:
    """Few heads of 64: one thread block of 8 warps reads up to 1,024 tokens faster than several
    with a reduction if they nearly fill the GPU; else one of 16 warps up to 256, a tile each.

    More than SMALL_CHUNKS chunks take longer to join than to read.
    """
    few = rows * 3 < num_sms
    if few and 8 * TILE < max_context_len <= 16 * TILE:
        return DecodePlan(16, 1, 16 * TILE)
    alone = max_context_len <= 1024 and not few
    chunk = (
        max_context_len if alone else min(1024, -(-max_context_len // max(1, 2 * num_sms // rows)))
    )
    chunk = max(chunk, -(-max_context_len // SMALL_CHUNKS), 8 * TILE)
    return DecodePlan(8, 2, -(-chunk // (8 * TILE)) * 8 * TILE)
