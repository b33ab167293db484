"""Step 3: a token of every sequence in one launch; prompts still go token by token."""

import torch
from torch import Tensor

from kernels.ladder.batch import LadderBatch
from kernels.ladder.launch import launch
from kernels.launch.attention import check_attention


def attend(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """out, q: [num_tokens, num_heads, head_size]; the caches hold the batch's keys and values already."""
    if len(batch.waves) == 1:  # decodes alone: the tokens are the sequences, in order
        wave = batch.waves[0]
        attend_once(out, q, k_cache, v_cache, wave.block_tables, wave.context_lens)
        return
    for wave in batch.waves:
        part = torch.empty((len(wave.tokens), *q.shape[1:]), dtype=q.dtype, device=q.device)
        attend_once(part, q[wave.tokens], k_cache, v_cache, wave.block_tables, wave.context_lens)
        out[wave.tokens] = part


def attend_once(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> None:
    """One token a sequence: out, q: [num_seqs, num_heads, head_size]."""
    s = check_attention(out, q, k_cache, v_cache)
    numbers = s.head_size**-0.5, s.num_kv_heads, block_tables.shape[1], s.q_stride
    grid = (s.num_heads, s.num_rows)
    launch("v3_batch.cu", "batched", s, grid, out, q, k_cache, v_cache, block_tables, context_lens, *numbers)
