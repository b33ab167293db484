"""How a decode launch is cut into thread blocks: a pure function of counts, so that it can be tested anywhere."""

from dataclasses import dataclass

TILE = 16  # tokens a warp takes at once
MAX_CHUNKS = 128  # of the second-stage reduction in decode.cu


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Warps per thread block, thread blocks kept resident on a multiprocessor, tokens per chunk of a context."""

    num_warps: int
    ctas_per_sm: int
    chunk_tokens: int

    def num_chunks(self, max_context_len: int) -> int:
        """Chunks of the longest context, the depth of the grid."""
        return max(1, -(-max_context_len // self.chunk_tokens))


def resident_warps(head_size: int) -> int:
    """Warps per multiprocessor whose registers hold one tile of K and of V each."""
    return 8 if head_size > 128 else 16


def plan_decode(
    num_seqs: int, num_kv_heads: int, head_tiles: int, head_size: int, max_context_len: int, num_sms: int
) -> DecodePlan:
    """Chunks just short enough to fill the GPU about once; no split where sequences and heads do so already."""
    warps = resident_warps(head_size)
    num_warps = 4
    slots = num_sms * warps // num_warps
    rows = num_seqs * num_kv_heads * head_tiles
    chunks = max(1, slots // rows, -(-max_context_len // 1024) if rows < 8 * slots else 1)
    step = TILE * num_warps
    chunk_tokens = -(-max_context_len // chunks)
    chunk_tokens = max(step, -(-chunk_tokens // step) * step, -(-max_context_len // MAX_CHUNKS // step + 1) * step)
    return DecodePlan(num_warps, warps // num_warps, chunk_tokens)
