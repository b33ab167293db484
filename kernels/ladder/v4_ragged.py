"""Step 4: every token of prompts and decodes in one launch, by sequence id and position."""

from torch import Tensor

from kernels.ladder.batch import LadderBatch
from kernels.ladder.launch import launch
from kernels.launch.attention import check_attention


def write(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """New keys and values, [num_tokens, num_kv_heads, head_size], to their slots; negative slots are left out."""
    s = check_attention(k.new_empty(k.shape), k, k_cache, v_cache)
    numbers = s.num_kv_heads, k.stride(0), v.stride(0)
    launch("v4_ragged.cu", "write", s, (len(k),), k_cache, v_cache, k, v, slot_mapping, *numbers)


def attend(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """out, q: [num_tokens, num_heads, head_size]; the caches hold the batch's keys and values already."""
    s = check_attention(out, q, k_cache, v_cache)
    tensors = out, q, k_cache, v_cache, batch.block_tables, batch.seq_ids, batch.positions
    numbers = s.head_size**-0.5, s.num_kv_heads, batch.block_tables.shape[1], s.q_stride
    launch("v4_ragged.cu", "ragged", s, (s.num_rows, s.num_heads), *tensors, *numbers)
