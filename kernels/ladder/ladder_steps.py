"""The steps of the ladder: their input, and the launch of each step's kernel; the last uses the
production kernels.

The input is a flat list of tokens, prompts first, then one token of each decode. A step fills `out`
from `q`, both [num_tokens, num_heads, head_size]; the caches hold the batch's keys and values.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.launch.attention import Shapes, check_attention, decode
from testbed.kernels.launch.compile import load
from testbed.kernels.launch.launch import Launch, stream_pointer
from testbed.kernels.launch.prefill_attention import prefill


class Wave(NamedTuple):
    """Tokens of different sequences: their indexes in the batch, their block tables and their
    context lengths.
    """

    tokens: Tensor
    block_tables: Tensor
    context_lens: Tensor


class LadderBatch:
    """Sequence i has news[i] new tokens after contexts[i] - news[i] cached ones; the first
    num_prompts are prompts.

    block_tables: int32 [num_seqs, max_blocks], on the device of all tensors. tokens: (sequence,
    context length) of each token, for launchers with one launch for each. seq_ids, positions: its
    sequence, and the tokens before it there. query_starts: the first token of every sequence, and
    the number of tokens; context_lens: the tokens of every one. waves: the first new token of every
    sequence, then the second of those that have one, and so on.
    """

    def __init__(
        self, news: Sequence[int], contexts: Sequence[int], num_prompts: int, block_tables: Tensor
    ) -> None:
        self.news, self.contexts, self.num_prompts, self.block_tables = (
            news,
            contexts,
            num_prompts,
            block_tables,
        )
        ends = zip(news, contexts, strict=True)
        self.tokens = [
            (seq, end - new + i + 1) for seq, (new, end) in enumerate(ends) for i in range(new)
        ]
        ints = partial(torch.tensor, dtype=torch.int32, device=block_tables.device)
        self.seq_ids, self.positions = (
            ints([seq for seq, _ in self.tokens]),
            ints([end - 1 for _, end in self.tokens]),
        )
        self.query_starts, self.context_lens = ints([0, *np.cumsum(news).tolist()]), ints(contexts)
        self.waves = []
        for i in range(max(news)):
            seqs = [seq for seq, new in enumerate(news) if new > i]
            tokens = self.query_starts[seqs].long() + i
            self.waves.append(
                Wave(tokens, block_tables[seqs].contiguous(), self.positions[tokens] + 1)
            )


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
            launch(
                "v1_gather.cu",
                "gather",
                s,
                (context_len,),
                piece,
                cache,
                table,
                s.num_kv_heads,
                context_len,
            )
        rows = out[token], q[token], keys, values, scores
        launch("v1_gather.cu", "attend", s, (s.num_heads,), *rows, scale, context_len)


def online(
    kernel: str, out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch
) -> None:
    """Step 2: read the blocks in place, by the kernel "one_pass" or "two_passes"; token by
    token.
    """
    s = check_attention(out, q, k_cache, v_cache)
    for token, (seq, context_len) in enumerate(batch.tokens):
        rows = out[token], q[token], k_cache, v_cache, batch.block_tables[seq]
        launch(
            "v2_online.cu",
            kernel,
            s,
            (s.num_heads,),
            *rows,
            s.head_size**-0.5,
            s.num_kv_heads,
            context_len,
        )


def batched(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 3: a token of every sequence in one launch; prompts still token by token."""
    alone = len(batch.waves) == 1  # decodes alone: the tokens are the sequences, in order
    for wave in batch.waves:
        part, queries = (
            (out, q) if alone else (q.new_empty((len(wave.tokens), *q.shape[1:])), q[wave.tokens])
        )
        s = check_attention(part, queries, k_cache, v_cache)
        tensors = part, queries, k_cache, v_cache, wave.block_tables, wave.context_lens
        numbers = s.head_size**-0.5, s.num_kv_heads, wave.block_tables.shape[1], s.q_stride
        launch("v3_batch.cu", "batched", s, (s.num_heads, s.num_rows), *tensors, *numbers)
        if not alone:
            out[wave.tokens] = part


def ragged(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """Step 4: every token of prompts and decodes in one launch, by sequence id and position."""
    s = check_attention(out, q, k_cache, v_cache)
    tensors = out, q, k_cache, v_cache, batch.block_tables, batch.seq_ids, batch.positions
    numbers = s.head_size**-0.5, s.num_kv_heads, batch.block_tables.shape[1], s.q_stride
    launch("v4_ragged.cu", "ragged", s, (s.num_rows, s.num_heads), *tensors, *numbers)


def production(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch
) -> None:
    """Step 5, the kernels that the engine runs: prompts by one launch, decodes by another."""
    n, caches, tables, lens = (
        batch.num_prompts,
        (k_cache, v_cache),
        batch.block_tables,
        batch.context_lens,
    )
    end = sum(batch.news[:n])
    if n:
        places = tables[:n], batch.query_starts[: n + 1], lens[:n]
        prefill(out[:end], q[:end], *caches, *places, max_query_len=max(batch.news[:n]))
    if n < len(batch.news):
        decode(
            out[end:],
            q[end:],
            *caches,
            tables[n:],
            lens[n:],
            max_context_len=max(batch.contexts[n:]),
        )


def launch(source: str, name: str, s: Shapes, grid: tuple[int, ...], *arguments: Any) -> None:
    """Launch kernel `name` of a source in this folder; tensors pass by address, numbers as 32
    bits.
    """
    kernel = load(f"../ladder/{source}", name, **s.defines)
    kinds: dict[type, Callable[[Any], Any]] = {float: np.float32, int: np.int32}
    raw = [kinds[type(a)](a) if type(a) in kinds else a.data_ptr() for a in arguments]
    Launch(kernel, grid, THREADS, raw)(stream_pointer(arguments[0]))


STEPS: dict[str, Attend] = {
    "v1 gather": gather,
    "v2 two passes": partial(online, "two_passes"),
    "v2 online": partial(online, "one_pass"),
    "v3 batch": batched,
    "v4 ragged": ragged,
    "production": production,
}
