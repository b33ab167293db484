"""The memory of SGLang's server on each GPU, and the pool of tokens that it leaves.

SGLang 0.5.23 (arg_groups/memory_hook.py, mem_cache/kv_cache_configurator.py) keeps a share of what
is free before it loads the weights, 1 - mem_fraction_static, for activations and CUDA graphs; the
rest of what is free behind the weights is the pool. It measures both. Here they follow from what
the GPU reports, less CUDA's context and NCCL's buffers (memory_terms.toml), and from the weights of
the shape.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testbed.core.divided_weights import bytes_on_gpu
from testbed.core.specs import GIB, GpuSpec, ModelSpec

MIB = 1 << 20
SERVER_MIB = 512  # metadata and slack, of every server
FEWEST_TOKENS, MIB_A_TOKEN = 2048, 1.5  # activations of a chunk
MIB_OF_GPUS = 1024 / 8  # of each GPU of the server, on each of them
LATENT_GRAPHS_MIB = 1536  # of prompts, if latents are cached
LARGE_GPU_MIB, LARGE_GPU_RESERVE_MIB = 60 * 1024, 10 * 1024
GRAPH_SIZES: tuple[int, ...] = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
)
COARSE_GRAPHS = 512  # tokens between larger graphs of prompts
MANY_GPUS = 4


@dataclass(frozen=True)
class Size:
    """Sizes that SGLang takes for GPUs with less than below_gib of memory: tokens of a chunk, and
    the largest batch of decodes with a CUDA graph, on fewer than MANY_GPUS GPUs and on more.
    """

    below_gib: float
    chunk: int
    few: int
    many: int


SIZES = (
    Size(20, 2048, 8, 8),
    Size(35, 4096, 48, 160),
    Size(60, 4096, 32, 160),
    Size(160, 8192, 256, 512),
    Size(float("inf"), 16384, 512, 512),
)


@dataclass(frozen=True)
class Terms:
    """The values of memory_terms.toml: what a GPU reports, by our name, and what CUDA and NCCL take
    before the weights, by the number of GPUs.
    """

    reported_mib: Mapping[str, float]
    other_gib: Mapping[str, float]
    expected_error_gib: float


@dataclass(frozen=True)
class Graphs:
    """The CUDA graphs that are captured. largest: of decodes; None: by the GPU. longest: tokens of
    the longest of prompts; None: the chunk.
    """

    decodes: bool = True
    prompts: bool = True
    largest: int | None = None
    longest: int | None = None


@dataclass(frozen=True)
class Limits:
    """The names are SGLang's; chunked_prefill_size is at most 0 if prompts are whole, and
    max_running_requests None if the pool decides.
    """

    num_gpus: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    max_running_requests: int | None
    graphs: Graphs


@dataclass(frozen=True)
class ServerMemory:
    """GiB of each GPU: free before the weights, the weights, and the share of the former that is
    used.
    """

    free: float
    weights: float
    fraction: float

    @property
    def kv_cache(self) -> float:
        """The memory that is left for K and V; negative if the weights leave nothing."""
        return (self.free - self.weights) - self.free * (1 - self.fraction)


@cache
def terms() -> Terms:
    """The terms that ship."""
    path = Path(__file__).with_name("memory_terms.toml")
    return Terms(**tomllib.loads(path.read_text(encoding="utf-8")))


def reported_mib(gpu: GpuSpec) -> float:
    """The memory that nvidia-smi prints."""
    return terms().reported_mib.get(gpu.name, gpu.memory_bytes / MIB)


def size_of(gpu: GpuSpec) -> Size:
    """The sizes that SGLang takes on a GPU."""
    gib = reported_mib(gpu) / 1024
    return next(size for size in SIZES if gib < size.below_gib)


def memory_of(
    model: ModelSpec, gpu: GpuSpec, limits: Limits, fraction: float | None = None
) -> ServerMemory:
    """The memory of each GPU of a server. fraction: --mem-fraction-static."""
    others = {int(count): gib for count, gib in terms().other_gib.items()}
    other = others[max(count for count in others if count <= limits.num_gpus)]
    return ServerMemory(
        free=reported_mib(gpu) / 1024 - other,
        weights=bytes_on_gpu(model, model.weight_bytes, limits.num_gpus) / GIB,
        fraction=static_fraction(model, gpu, limits) if fraction is None else fraction,
    )


def static_fraction(model: ModelSpec, gpu: GpuSpec, limits: Limits) -> float:
    """SGLang's mem_fraction_static, if nothing gives it."""
    memory = reported_mib(gpu)
    chunk = limits.chunked_prefill_size
    tokens = chunk if chunk > 0 else limits.max_prefill_tokens
    reserved = SERVER_MIB + MIB_A_TOKEN * max(tokens, FEWEST_TOKENS)
    reserved += MIB_OF_GPUS * limits.num_gpus + _graphs_mib(model, gpu, limits)
    if memory > LARGE_GPU_MIB:
        reserved = max(reserved, LARGE_GPU_RESERVE_MIB)
    return float(round((memory - reserved) / memory, 3))


def _graphs_mib(model: ModelSpec, gpu: GpuSpec, limits: Limits) -> float:
    graphs, reserved = limits.graphs, 0.0
    if graphs.decodes:
        reserved += 2 * largest_graph(gpu, limits)
    if not graphs.prompts:
        return reserved
    if model.latent:
        return reserved + LATENT_GRAPHS_MIB
    chunk = limits.chunked_prefill_size
    longest = chunk if graphs.longest is None else min(chunk, graphs.longest)
    sizes = list(GRAPH_SIZES)
    sizes += range(GRAPH_SIZES[-1] + COARSE_GRAPHS, longest + 1, COARSE_GRAPHS)
    return reserved + 8 * sum(size <= longest for size in sizes)


def largest_graph(gpu: GpuSpec, limits: Limits) -> int:
    """The largest batch of decodes that has a CUDA graph."""
    if limits.graphs.largest is not None:
        return limits.graphs.largest
    size = size_of(gpu)
    largest = size.few if limits.num_gpus < MANY_GPUS else size.many
    most = limits.max_running_requests
    return largest if most is None else min(largest, most)
