"""The memory of vLLM's server on each GPU, term by term, and the KV cache that it leaves.

vLLM (v1/worker/gpu_worker.py, determine_available_memory) computes KV = gpu_memory_utilization
x memory - weights - peak activation of a profiling run - memory that is not PyTorch's. CUDA graphs
are captured afterwards and come on top; newer releases subtract an estimate of them, unless
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0.

- weights: from the shape; linear layers, embedding and output are divided among the GPUs. Tables
  of the rope and the allocator's rounding are counted with them (loaded_weights.py).
- activation: the peak of the profiling run (profiled_peak.py).
- non_torch: CUDA's context and NCCL's buffers, by the number of GPUs (logged medians of tensor
  parallelism, taken for pipeline stages too).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.divided_weights import bytes_on_gpu
from testbed.core.errors import InputError
from testbed.core.slots import ceil_div
from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.vllm.limits import Limits
from testbed.vllm.loaded_weights import beside_parameters_gib
from testbed.vllm.profiled_peak import activation_gib
from testbed.vllm.stages import Stage

LARGEST_GRAPH = 512  # sequences


@dataclass(frozen=True)
class Terms:
    """Terms that are in no data sheet and no shape: the values of memory_terms.toml. images and
    rope_tables: by model, what profiled_peak and loaded_weights take.
    """

    logits: float
    hidden: float
    rmse_gib: float
    cuda_graphs_gib: float
    non_torch_gib: Mapping[str, float]
    visible_gib: Mapping[str, float]
    encoder_params: Mapping[str, float]
    rope_tables: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerMemory:
    """GiB of each GPU. `budget` is what vLLM may use of its memory; adapters: of LoRA, which vLLM
    loads with the weights; encoder: of images, a part of the weights.
    """

    budget: float
    weights: float
    activation: float
    non_torch: float
    cuda_graphs: float = 0.0  # what the release subtracts
    adapters: float = 0.0
    encoder: float = 0.0

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
    stage: Stage,
    gpu: GpuSpec,
    limits: Limits,
    utilization: float,
    *,
    with_encoder: bool = True,
    graphs_are_part: bool = False,
    of: Terms | None = None,
    num_positions: int | None = None,
) -> ServerMemory:
    """The memory of each GPU of a server's stage, in GiB, by the terms `of` (default: those that
    ship).

    utilization: the share of the GPU's memory that vLLM may use. with_encoder: the encoder of
    images is loaded too. graphs_are_part: an estimate of the CUDA graphs is part of it; else they
    come on top. num_positions: of the model, if it serves another longest sequence.
    """
    memory_terms, model = of or terms(), stage.model
    is_encoder = with_encoder and not stage.receives
    encoder = memory_terms.encoder_params.get(model.name, 0.0) if is_encoder else 0.0
    tables = memory_terms.rope_tables.get(model.name, 1)
    positions = num_positions or model.max_len
    beside = beside_parameters_gib(model, positions, limits.num_gpus, tables)
    return ServerMemory(
        budget=utilization * seen_gib(gpu, memory_terms).gib,
        weights=_weights_gib(stage, limits, encoder) + beside,
        encoder=_encoder_gib(stage.model, limits, encoder),
        activation=activation_gib(
            model,
            limits,
            logits=memory_terms.logits,
            hidden=memory_terms.hidden,
            image=memory_terms.images.get(model.name, {}) if is_encoder else {},
            samples=stage.samples,
            receives=stage.receives,
        ),
        non_torch=_non_torch(limits.num_gpus * limits.num_stages, memory_terms),
        cuda_graphs=graphs_gib(limits, memory_terms) if graphs_are_part else 0.0,
    )


def _weights_gib(stage: Stage, limits: Limits, encoder_params: float) -> float:
    """A GPU's share of the parameters."""
    model = stage.model
    weight_bytes = stage.weight_bytes - _experts_elsewhere(model, limits)
    encoder = encoder_params * model.dtype_bytes / _parts_of_encoder(model, limits)
    shared = _copied_columns(model, limits)
    return (bytes_on_gpu(model, weight_bytes, limits.num_gpus) + shared + encoder) / GIB


def _copied_columns(model: ModelSpec, limits: Limits) -> float:
    """Bytes of the columns that all tokens share, of which a GPU has those of others too; beside
    sparse attention those of dense layers count, without pipeline stages.
    """
    is_copied = limits.divides_tokens and model.copies_shared
    if model.experts is None or not is_copied:
        return 0.0
    columns = model.num_expert_layers * model.experts.shared_size
    if model.latent and model.latent.index_bytes and limits.num_stages == 1:
        columns += model.experts.num_dense_layers * model.ffn_size
    bits = model.weight_bits or 8 * model.dtype_bytes
    of_all = model.ffn_matrices * model.hidden_size * columns * bits / 8
    return of_all * (1 - 1 / limits.num_gpus)


def _encoder_gib(model: ModelSpec, limits: Limits, encoder_params: float) -> float:
    """A GPU's share of the encoder of images, of which the shape counts a part."""
    num_params = encoder_params + (model.vision_params or 0)
    return num_params * model.dtype_bytes / _parts_of_encoder(model, limits) / GIB


def _parts_of_encoder(model: ModelSpec, limits: Limits) -> int:
    """The GPUs that share an encoder: one for each copy of a tower that is not divided."""
    return 1 if model.vision_heads is None else limits.num_gpus


def _experts_elsewhere(model: ModelSpec, limits: Limits) -> float:
    """Bytes of the experts that other engines of data parallelism have; less than their share where
    the first GPU has one expert more than others.
    """
    if model.experts is None:
        return 0.0
    num_sharing = limits.num_gpus * limits.num_expert_ranks // limits.num_expert_parts
    here = ceil_div(model.experts.count, num_sharing) * num_sharing / limits.num_expert_ranks
    return model.expert_bytes(model.experts.count - here)


class Seen(NamedTuple):
    """The memory of a GPU. by_torch: as torch sees it; else as its data sheet or driver says, of
    which torch sees 1 to 2% less.
    """

    gib: float
    by_torch: bool


def seen_gib(gpu: GpuSpec, memory_terms: Terms) -> Seen:
    """The memory of which a server may use a share."""
    by_torch = memory_terms.visible_gib.get(gpu.name)
    return Seen(gpu.memory_bytes / GIB, False) if by_torch is None else Seen(by_torch, True)


def graphs_gib(limits: Limits, memory_terms: Terms) -> float:
    """vLLM's estimate of the CUDA graphs that it captures, in GiB, by the largest batch that has
    one.
    """
    largest = min(2 * limits.max_num_seqs, LARGEST_GRAPH)
    return memory_terms.cuda_graphs_gib * largest / LARGEST_GRAPH


def other_gib(num_gpus: int) -> float:
    """GiB of CUDA's context and NCCL's buffers on each of num_gpus GPUs, by the terms that ship."""
    return _non_torch(num_gpus, terms())


def _non_torch(num_gpus: int, memory_terms: Terms) -> float:
    sizes = {int(count): size for count, size in memory_terms.non_torch_gib.items()}
    return sizes[max(count for count in sizes if count <= num_gpus)]
