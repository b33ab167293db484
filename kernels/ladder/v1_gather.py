"""Step 1: gather a sequence's blocks into a contiguous copy, then attend; token by token."""

import torch
from torch import Tensor

from kernels.ladder.batch import LadderBatch
from kernels.ladder.launch import launch
from kernels.launch.attention import check_attention


def attend(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """out, q: [num_tokens, num_heads, head_size]; the caches hold the batch's keys and values already."""
    s = check_attention(out, q, k_cache, v_cache)
    scale, longest = s.head_size**-0.5, max(batch.contexts)
    keys, values = (q.new_empty(s.num_heads * longest * s.head_size) for _ in range(2))
    scores = q.new_empty(s.num_heads * longest, dtype=torch.float32)
    for token, (seq, context_len) in enumerate(batch.tokens):
        table = batch.block_tables[seq]
        for piece, cache in ((keys, k_cache), (values, v_cache)):
            launch("v1_gather.cu", "gather", s, (context_len,), piece, cache, table, s.num_kv_heads, context_len)
        rows = out[token], q[token], keys, values, scores
        launch("v1_gather.cu", "attend", s, (s.num_heads,), *rows, scale, context_len)
