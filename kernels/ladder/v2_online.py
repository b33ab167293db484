"""Step 2: read the blocks where they lie, in one pass or in two; token by token."""

from torch import Tensor

from kernels.ladder.batch import LadderBatch
from kernels.ladder.launch import launch
from kernels.launch.attention import check_attention


def attend(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """out, q: [num_tokens, num_heads, head_size]; the caches hold the batch's keys and values already."""
    _attend("one_pass", out, q, k_cache, v_cache, batch)


def attend_in_two_passes(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """The same, with every key read twice."""
    _attend("two_passes", out, q, k_cache, v_cache, batch)


def _attend(kernel: str, out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    s = check_attention(out, q, k_cache, v_cache)
    for token, (seq, context_len) in enumerate(batch.tokens):
        rows = out[token], q[token], k_cache, v_cache, batch.block_tables[seq]
        launch("v2_online.cu", kernel, s, (s.num_heads,), *rows, s.head_size**-0.5, s.num_kv_heads, context_len)
