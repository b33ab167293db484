"""The memory that the engine holds on each GPU: by the shapes of what it allocates, and what CUDA,
NCCL and their graphs take beside it, which was measured. No torch is needed.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec
from testbed.kernels.engine.sizes import (
    BUCKETS,
    WORKSPACE_CHUNKS,
    WORKSPACE_SEQS,
    buckets_up_to,
    contexts_up_to,
    sizes_up_to,
)
from testbed.memory.policy import PoolSpec
from testbed.run.config import EngineConfig

FP32, INT32, INT64 = 4, 4, 8  # bytes
CUBLAS_BYTES = 32 << 20  # of each stream that multiplies, on a Hopper GPU
STREAMS = 2  # that multiply: PyTorch's own, and that of captures
# Outside PyTorch, of Llama-3-8B on one and two H200 with and without graphs: the rows of
# kernels/results/engine/held-memory.csv, from which a test derives them.
CUDA_BYTES = 793_500_000  # a context, kernels, and what else is loaded
NCCL_BYTES = 811_700_000  # between two GPUs
LAYER_BYTES = 71_680  # of a layer in a graph
ALL_REDUCE_BYTES = 146_600  # of one in a graph
ALL_REDUCES = 2  # of a layer


class HeldMemory(NamedTuple):
    """Bytes on each GPU. eager: what the largest pass kernel by kernel leaves in PyTorch's
    cache. captured: what CUDA keeps of the graphs themselves. drafter: of a model that drafts, all
    but its K and V, which are in kv_cache.
    """

    weights: int
    kv_cache: int
    prompt_graphs: int
    decode_graphs: int
    logits: int
    attention: int
    eager: int
    cublas: int
    cuda: int
    nccl: int
    captured: int
    drafter: int


def held_memory(
    model: ModelSpec,
    pool: PoolSpec,
    block_size: int,
    engine: EngineConfig,
    drafter: ModelSpec | None = None,
) -> HeldMemory:
    """The memory of an engine with this pool, on as many GPUs as the pool is divided among.
    drafter: a model that drafts, which has weights, graphs, logits and a workspace of its own; its
    passes kernel by kernel are smaller than the model's, whose memory they use.
    """
    held = Rank(model, pool, block_size, engine).held
    if drafter is None:
        return held
    own = Rank(drafter, pool, block_size, engine).held
    buffers = own.prompt_graphs, own.decode_graphs, own.logits, own.attention
    return held._replace(drafter=own.weights + sum(buffers) + own.captured)


@dataclass(frozen=True)
class Rank:
    """One of as many GPUs as the pool is divided among."""

    model: ModelSpec
    pool: PoolSpec
    block_size: int
    engine: EngineConfig

    @property
    def held(self) -> HeldMemory:
        num_gpus = self.pool.num_gpus
        return HeldMemory(
            weights=self.model.weight_bytes // num_gpus + self._positions,
            kv_cache=self.pool.num_slots * self.pool.layer_bytes * self.pool.num_layers // num_gpus,
            prompt_graphs=self._prompt_graphs if self.engine.prompt_graphs else 0,
            decode_graphs=self._decode_graphs if self.engine.graphs else 0,
            logits=BUCKETS[-1] * self.model.vocab_size * self._value if self.engine.graphs else 0,
            attention=self._attention,
            eager=max(self.engine.warm, default=0) * self._row,
            cublas=STREAMS * CUBLAS_BYTES,
            cuda=CUDA_BYTES,
            nccl=NCCL_BYTES if num_gpus > 1 else 0,
            captured=self.captured_layers * self._captured_layer,
            drafter=0,
        )

    @property
    def captured_layers(self) -> int:
        """The layers of all graphs together."""
        sizes = sizes_up_to(self.engine.prompt_graphs) if self.engine.prompt_graphs else []
        decodes = buckets_up_to(self.engine.graphs) if self.engine.graphs else []
        return self.model.num_layers * (len(sizes) + len(decodes) * len(self._contexts))

    @property
    def _captured_layer(self) -> int:
        return LAYER_BYTES + (ALL_REDUCES * ALL_REDUCE_BYTES if self.pool.num_gpus > 1 else 0)

    @property
    def _contexts(self) -> list[int]:
        """The longest contexts that decodes are captured for."""
        longest = min(self.model.max_len, self.pool.max_len)
        return contexts_up_to(longest, longest)

    @property
    def _is_opt(self) -> bool:
        return self.model.ffn_matrices == 2

    @property
    def _positions(self) -> int:
        """OPT's table of them, which every GPU has."""
        return self._is_opt * self.model.max_len * self.model.hidden_size * self._value

    @property
    def _value(self) -> int:
        return FP32 if self.engine.dtype == "float32" else FP32 // 2

    @cached_property
    def _row(self) -> int:
        """Bytes of a token in the buffers of the layers: the residual stream, its norm, queries,
        keys and values, attention's output, and what lies before and behind the activation.
        """
        model, num_gpus = self.model, self.pool.num_gpus
        q = model.num_heads * model.head_size // num_gpus
        kv = max(1, model.num_kv_heads // num_gpus) * model.head_size
        ffn = model.ffn_size * model.ffn_matrices // num_gpus
        if self._is_opt:  # nothing lies before
            ffn //= 2
        return (2 * model.hidden_size + 2 * (q + kv) + ffn) * self._value

    @property
    def _prompt_graphs(self) -> int:
        """Buffers and an embedding of the largest size, and the arrays of each."""
        sizes = sizes_up_to(self.engine.prompt_graphs)
        return sizes[-1] * (self._row + self._embedding) + 4 * INT64 * sum(sizes)

    @property
    def _decode_graphs(self) -> int:
        """Values of a pass of the largest size, whose memory all graphs share, and the arrays of
        each.
        """
        sizes = buckets_up_to(self.engine.graphs)
        num_gpus, vocab = self.pool.num_gpus, self.model.vocab_size * self._value
        gathered = 0 if num_gpus == 1 else vocab // num_gpus + 2 * vocab
        widths = [ceil_div(n, self.block_size) for n in self._contexts]
        of_seq = [4 * INT64 + INT32 + INT32 * width for width in widths]
        return sizes[-1] * (self._row + self._embedding + gathered) + sum(sizes) * sum(of_seq)

    @property
    def _embedding(self) -> int:
        """The bytes of a token's embedding before it is in the buffers; OPT's positions are added
        to it.
        """
        return (1 + self._is_opt) * self.model.hidden_size * self._value

    @property
    def _attention(self) -> int:
        """Partial results of decodes, two sums beside each, and a counter of each head."""
        heads = WORKSPACE_SEQS * (self.model.num_heads // self.pool.num_gpus)
        return heads * WORKSPACE_CHUNKS * (self.model.head_size + 2) * FP32 + heads * INT32
