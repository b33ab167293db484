"""The memory of vLLM's server on each GPU, term by term, and the KV cache that it leaves.

vLLM (v1/worker/gpu_worker.py, determine_available_memory) computes KV = gpu_memory_utilization
x memory - weights - peak activation of a profiling run - memory that is not PyTorch's. CUDA graphs
are captured afterwards and come on top; newer releases subtract an estimate of them, unless
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0.

- weights: from the shape; linear layers, embedding and output are divided among the GPUs.
- activation: the larger of two peaks of the profiling run. Sampling max_num_seqs rows of logits in
  float32, with their sorted copies, beside the hidden states of max_num_batched_tokens (both
  coefficients fitted, memory_terms.toml); and the feed-forward network of such a batch (gate, up
  and their product, by its shape alone). Experts add the workspaces of their fused kernels.
- non_torch: CUDA's context and NCCL's buffers, by the number of GPUs (logged medians).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import GIB, GpuSpec, ModelSpec

LOGIT_BYTES = 4  # vLLM samples in float32
LARGEST_GRAPH = 512  # sequences


@dataclass(frozen=True)
class Limits:
    """The sizes that decide the batch of the profiling run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpus: int = 1


@dataclass(frozen=True)
class Terms:
    """Terms that are in no data sheet and no shape: the values of memory_terms.toml."""

    logits: float
    hidden: float
    rmse_gib: float
    cuda_graphs_gib: float
    non_torch_gib: Mapping[str, float]
    visible_gib: Mapping[str, float]
    encoder_params: Mapping[str, float]


@dataclass(frozen=True)
class ServerMemory:
    """GiB of each GPU. `budget` is what vLLM may use of its memory; adapters: of LoRA, which vLLM
    loads with the weights.
    """

    budget: float
    weights: float
    activation: float
    non_torch: float
    cuda_graphs: float = 0.0  # what the release subtracts
    adapters: float = 0.0

    @property
    def kv_cache(self) -> float:
        """The memory that is left for K and V; negative if the rest does not fit."""
        used = self.weights + self.activation + self.non_torch + self.cuda_graphs
        return self.budget - used - self.adapters


def terms() -> Terms:
    """The terms that ship."""
    return terms_in(Path(__file__).with_name("memory_terms.toml"))


@cache
def terms_in(path: Path) -> Terms:
    """The terms of a file such as memory_terms.toml. Raises InputError if it is no such file."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        fitted = values.pop("fitted")
        return Terms(**fitted, **values)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(key=path, problem=f"cannot be read: {error}") from None
    except (KeyError, TypeError):
        names = ", ".join(field.name for field in fields(Terms))
        raise InputError(key=path, problem=f"is no file of memory terms ({names})") from None


def memory_of(
    model: ModelSpec,
    gpu: GpuSpec,
    limits: Limits,
    utilization: float,
    *,
    with_encoder: bool = True,
    graphs_are_part: bool = False,
    of: Terms | None = None,
) -> ServerMemory:
    """The memory of each GPU of a server, in GiB, by the terms `of` (default: those that ship).

    utilization: the share of the GPU's memory that vLLM may use. with_encoder: the encoder of
    images is loaded too. graphs_are_part: an estimate of the CUDA graphs is part of it; else they
    come on top.
    """
    memory_terms = of or terms()
    visible = memory_terms.visible_gib.get(gpu.name, gpu.memory_bytes / GIB)
    encoder = memory_terms.encoder_params.get(model.name, 0.0) if with_encoder else 0.0
    weights = (model.weight_bytes + encoder * model.dtype_bytes) / limits.num_gpus / GIB
    return ServerMemory(
        budget=utilization * visible,
        weights=weights,
        activation=activation_gib(model, limits, memory_terms),
        non_torch=_non_torch(limits.num_gpus, memory_terms),
        cuda_graphs=graphs_gib(limits, memory_terms) if graphs_are_part else 0.0,
    )


def graphs_gib(limits: Limits, memory_terms: Terms) -> float:
    """vLLM's estimate of the CUDA graphs that it captures, in GiB, by the largest batch that has
    one.
    """
    largest = min(2 * limits.max_num_seqs, LARGEST_GRAPH)
    return memory_terms.cuda_graphs_gib * largest / LARGEST_GRAPH


def other_gib(num_gpus: int) -> float:
    """GiB of CUDA's context and NCCL's buffers on each of so many GPUs, by the terms that ship."""
    return _non_torch(num_gpus, terms())


def _non_torch(num_gpus: int, memory_terms: Terms) -> float:
    sizes = {int(count): size for count, size in memory_terms.non_torch_gib.items()}
    return sizes[max(count for count in sizes if count <= num_gpus)]


def activation_gib(model: ModelSpec, limits: Limits, memory_terms: Terms) -> float:
    """The peak of the profiling run, in GiB: that of sampling or that of the network, whichever is
    larger, plus the workspaces of the experts.
    """
    logits, hidden = sampling_gib(model, limits)
    sampling = memory_terms.logits * logits + memory_terms.hidden * hidden
    network = network_gib(model, limits) + memory_terms.hidden * hidden
    return max(sampling, network) + expert_gib(model, limits)


def network_gib(model: ModelSpec, limits: Limits) -> float:
    """GiB of gate, up and their product in a dense layer; 0 if all layers have experts."""
    if model.num_expert_layers >= model.ffn_layers:
        return 0.0
    columns = model.ffn_matrices * model.ffn_size / limits.num_gpus
    return limits.max_num_batched_tokens * columns * model.dtype_bytes / GIB


def sampling_gib(model: ModelSpec, limits: Limits) -> tuple[float, float]:
    """GiB of the rows of logits, and of the hidden states of the batch: what the coefficients
    multiply.
    """
    logits = limits.max_num_seqs * model.vocab_size * LOGIT_BYTES / GIB
    hidden = limits.max_num_batched_tokens * model.hidden_size * model.dtype_bytes / GIB
    return logits, hidden


def expert_gib(model: ModelSpec, limits: Limits) -> float:
    """The two workspaces of fused experts, which last: gate and up of all tokens, or their result
    if that is larger, and the product of both.
    """
    if model.experts is None:
        return 0.0
    rows = limits.max_num_batched_tokens * model.experts.per_token
    size = model.experts.size / limits.num_gpus
    return rows * (max(2 * size, model.hidden_size) + size) * model.dtype_bytes / GIB
