"""The steps of the ladder: the launch of each step's kernel; the last step uses the production kernels.

A step fills `out` from `q`, both [num_tokens, num_heads, head_size]; the caches hold the batch's keys and values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.ladder.batch import LadderBatch
from testbed.kernels.launch.attention import Shapes, check_attention, paged_decode
from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import Launch, stream_pointer
from testbed.kernels.launch.prefill_attention import paged_prefill

THREADS = 128  # of every thread block in the ladder
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, LadderBatch], None]


def gather(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 1: gather a sequence's blocks to a contiguous copy, then attend; token by token."""
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


def online(kernel: str, out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 2: read the blocks in place, by the kernel "one_pass" or "two_passes"; token by token."""
    s = check_attention(out, q, k_cache, v_cache)
    for token, (seq, context_len) in enumerate(batch.tokens):
        rows = out[token], q[token], k_cache, v_cache, batch.block_tables[seq]
        launch("v2_online.cu", kernel, s, (s.num_heads,), *rows, s.head_size**-0.5, s.num_kv_heads, context_len)


def batched(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 3: a token of every sequence in one launch; prompts still token by token."""
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
    """One token per sequence: out, q: [num_seqs, num_heads, head_size]."""
    s = check_attention(out, q, k_cache, v_cache)
    numbers = s.head_size**-0.5, s.num_kv_heads, block_tables.shape[1], s.q_stride
    grid = (s.num_heads, s.num_rows)
    launch("v3_batch.cu", "batched", s, grid, out, q, k_cache, v_cache, block_tables, context_lens, *numbers)


def ragged(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 4: every token of prompts and decodes in one launch, by sequence id and position."""
    s = check_attention(out, q, k_cache, v_cache)
    tensors = out, q, k_cache, v_cache, batch.block_tables, batch.seq_ids, batch.positions
    numbers = s.head_size**-0.5, s.num_kv_heads, batch.block_tables.shape[1], s.q_stride
    launch("v4_ragged.cu", "ragged", s, (s.num_rows, s.num_heads), *tensors, *numbers)


def production(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 5, the kernels that the engine runs: prompts by one launch, decodes by another."""
    n, caches = batch.num_prompts, (k_cache, v_cache)
    end = sum(batch.news[:n])
    if n:
        paged_prefill(
            out[:end], q[:end], *caches, batch.block_tables[:n], batch.query_starts[: n + 1], batch.context_lens[:n],
            max_query_len=max(batch.news[:n]),
        )  # fmt: skip
    if n < len(batch.news):
        longest = max(batch.contexts[n:])
        tables, lens = batch.block_tables[n:], batch.context_lens[n:]
        paged_decode(out[end:], q[end:], *caches, tables, lens, max_context_len=longest)


def launch(source: str, name: str, s: Shapes, grid: tuple[int, ...], *arguments: Any) -> None:
    """Launch kernel `name` of a source in this folder; tensors pass by address, numbers as 32 bits."""
    kernel = load(f"../ladder/{source}", name, **s.defines, BLOCK_SIZE=s.block_size)
    Launch(kernel, grid, (THREADS,), [_raw(a) for a in arguments])(stream_pointer(arguments[0]))


def _raw(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return np.float32(argument) if isinstance(argument, float) else np.int32(argument)


STEPS: dict[str, Attend] = {
    "v1 gather": gather,
    "v2 two passes": partial(online, "two_passes"),
    "v2 online": partial(online, "one_pass"),
    "v3 batch": batched,
    "v4 ragged": ragged,
    "production": production,
}
