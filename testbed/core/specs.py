"""What is served and what serves it: a model's shape, a GPU's data sheet, a server and its KV pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.errors import InputError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a decoder-only transformer; everything that decides bytes and FLOPs.

    ffn_matrices is 2 for OPT (up, down) and 3 for LLaMA (gate, up, down); tied_embedding says that the output
    projection is the embedding matrix itself. max_len is the longest sequence in tokens.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    ffn_matrices: int
    vocab_size: int
    max_len: int
    tied_embedding: bool = False
    dtype_bytes: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers (section 3: 800 KiB for OPT-13B)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.dtype_bytes

    @property
    def layer_params(self) -> int:
        """Weights of the linear layers of one transformer layer."""
        q_and_out = 2 * self.hidden_size * self.num_heads * self.head_size
        k_and_v = 2 * self.hidden_size * self.num_kv_heads * self.head_size
        return q_and_out + k_and_v + self.ffn_matrices * self.hidden_size * self.ffn_size

    @property
    def linear_params(self) -> int:
        """Weights that every token is multiplied with: all layers and the output projection."""
        return self.num_layers * self.layer_params + self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All weights, the input embedding included."""
        return self.linear_params + (0 if self.tied_embedding else self.vocab_size * self.hidden_size)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.num_params * self.dtype_bytes


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU's data sheet. Bandwidths in bytes/s, fp16_flops in FLOP/s of the dense tensor cores.

    device is the name that the driver prints, by which a profile says where it was measured; empty: not known.
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float
    fp16_flops: float
    host_bandwidth: float
    link_bandwidth: float
    device: str = ""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """num_gpus GPUs that hold one model by tensor parallelism.

    kv_memory_gib gives the KV pool of some models by name, in GiB over all GPUs (the paper's Table 1); any other
    model gets what `memory_utilization` leaves after weights and `workspace_gib` a GPU.
    """

    name: str
    gpu: GpuSpec
    num_gpus: int
    kv_memory_gib: Mapping[str, float] = field(default_factory=dict)
    memory_utilization: float = 0.95
    workspace_gib: float = 1.0

    def kv_pool_bytes(self, model: ModelSpec) -> int:
        """Bytes for the KV cache of `model` on all GPUs together; negative when the weights do not fit."""
        if model.name in self.kv_memory_gib:
            return int(self.kv_memory_gib[model.name] * GIB)
        usable = self.memory_utilization * self.gpu.memory_bytes - self.workspace_gib * GIB
        return int(self.num_gpus * usable) - model.weight_bytes

    def kv_slots(self, model: ModelSpec, block_size: int = 1) -> int:
        """Slots of the KV pool, cut to whole blocks of block_size slots."""
        blocks = self.kv_pool_bytes(model) // (model.kv_bytes_per_token * block_size)
        if blocks < 1:
            raise InputError(f"{model.name} leaves no room for a KV cache on {self.name}: choose a larger server")
        return blocks * block_size
