"""The steps of the ladder by name, the production kernels last."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kernels.ladder import v1_gather, v2_online, v3_batch, v4_ragged
from kernels.ladder.batch import LadderBatch
from kernels.launch.attention import paged_decode
from kernels.launch.prefill_attention import paged_prefill

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, LadderBatch], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A way to compute the attention of a batch, and what it adds to the step before."""

    name: str
    adds: str
    attend: Attend


def production(out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: LadderBatch) -> None:
    """The kernels that the engine runs: prompts by one launch, decodes by another."""
    n, end, caches = batch.num_prompts, batch.num_prompt_tokens, (k_cache, v_cache)
    if n:
        paged_prefill(
            out[:end], q[:end], *caches, batch.block_tables[:n], batch.query_starts[: n + 1], batch.context_lens[:n],
            max_query_len=max(batch.news[:n]),
        )  # fmt: skip
    if n < len(batch.news):
        longest = max(batch.contexts[n:])
        tables, lens = batch.block_tables[n:], batch.context_lens[n:]
        paged_decode(out[end:], q[end:], *caches, tables, lens, max_context_len=longest)


STEPS = (
    Step("v1 gather", "a contiguous copy of each sequence", v1_gather.attend),
    Step("v2 two passes", "blocks read in place, keys twice", v2_online.attend_in_two_passes),
    Step("v2 online", "blocks read in place, once", v2_online.attend),
    Step("v3 batch", "all sequences in one launch", v3_batch.attend),
    Step("v4 ragged", "prompts and decodes in one launch", v4_ragged.attend),
    Step("production", "tensor cores, wide loads in flight, split contexts", production),
)
