"""The shape of a model, the data sheet of a GPU, and a server with its KV pool."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace

from testbed.core.errors import InputError
from testbed.core.layers import Experts, KvGroup, Latent, States, Window, layers_of

GIB = 1 << 30
NO_EXPERTS = Experts(0, 0, 0)
LAYERS: dict[str, type] = {"window": Window, "latent": Latent, "experts": Experts, "states": States}
SPECIAL = ("kv_dtype_bytes", "weight_bits", "num_ffn_layers", *LAYERS)  # None in a plain model


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a decoder-only transformer: all values that determine bytes and FLOPs.

    ffn_matrices is 2 for OPT (up, down) and 3 for LLaMA (gate, up, down); tied_embedding is true
    where the output projection is the embedding matrix. max_len is the longest sequence in tokens.
    kv_dtype_bytes: bytes of a cached value, None for dtype_bytes. weight_bits: bits of a weight of
    the layers, None for those of dtype_bytes, which the embedding and the output projection always
    have. num_ffn_layers: layers with a feed-forward network, None for all.
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
    kv_dtype_bytes: int | None = None
    weight_bits: float | None = None
    num_ffn_layers: int | None = None
    window: Window | None = None
    latent: Latent | None = None
    experts: Experts | None = None
    states: States | None = None

    def __post_init__(self) -> None:
        for part, kind in LAYERS.items():
            object.__setattr__(
                self, part, layers_of(kind, getattr(self, part), f"model {self.name}: {part}")
            )
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is int and (type(value) is not int or value < 1):
                raise InputError(
                    f"model {self.name}: {one.name} is {value!r}; it must be a whole number of at "
                    f"least 1"
                )
        if self.kv_dtype_bytes == self.dtype_bytes:
            object.__setattr__(self, "kv_dtype_bytes", None)
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"model {self.name}: {self.num_heads} heads do not share {self.num_kv_heads} heads "
                f"of K "
                "and V evenly (num_heads, num_kv_heads)"
            )
        for name in ("kv_dtype_bytes", "weight_bits", "num_ffn_layers"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"model {self.name}: {name}={value!r}: must be above 0, or null")
        in_window = self.window.num_layers if self.window else 0
        if self.num_attention_layers < max(in_window, 1):
            raise InputError(
                f"model {self.name}: {self.num_layers} layers are too few for {in_window} of "
                f"window and "
                f"{self.num_layers - self.num_attention_layers} of states"
            )
        if self.experts and self.experts.num_dense_layers > self.ffn_layers:
            raise InputError(
                f"model {self.name}: experts.num_dense_layers={self.experts.num_dense_layers}: "
                f"there are "
                f"only {self.ffn_layers} layers"
            )

    def is_shaped_like(self, other: "ModelSpec") -> bool:
        """Whether both compute the same: neither the name nor the longest sequence is part of a
        shape.
        """
        return self == replace(
            other, name=self.name, max_len=self.max_len, tied_embedding=self.tied_embedding
        )

    @property
    def is_plain(self) -> bool:
        """Whether all layers are full attention and one dense network, with one type of weights and
        cache.
        """
        return all(getattr(self, name) is None for name in SPECIAL)

    @property
    def num_attention_layers(self) -> int:
        """Layers that cache something for each token."""
        return self.num_layers - (self.states.num_layers if self.states else 0)

    @property
    def ffn_layers(self) -> int:
        return self.num_layers if self.num_ffn_layers is None else self.num_ffn_layers

    @property
    def slot_bytes(self) -> int:
        """Bytes that an attention layer caches for each token: K and V, or the latent vector."""
        values = (
            self.latent.kv_rank + self.latent.rope_size
            if self.latent
            else 2 * self.num_kv_heads * self.head_size
        )
        return values * (self.kv_dtype_bytes or self.dtype_bytes)

    @property
    def groups(self) -> tuple[KvGroup, ...]:
        """The layers by the form of their cache; full attention comes first, states last."""
        in_window = self.window.num_layers if self.window else 0
        found = [
            KvGroup(
                "latent" if self.latent else "full",
                self.num_attention_layers - in_window,
                self.slot_bytes,
            )
        ]
        if self.window:
            found.append(KvGroup("window", in_window, self.slot_bytes, self.window.size))
        if self.states:
            state_bytes = self.states.state_bytes or self.states.num_tokens * self.slot_bytes
            found.append(KvGroup("state", self.states.num_layers, 0, None, state_bytes))
        return tuple(group for group in found if group.num_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes cached for one token in all layers, windows not cut (section 3: 800 KiB for
        OPT-13B).
        """
        return self.num_attention_layers * self.slot_bytes

    @property
    def attention_params(self) -> int:
        """Weights of one attention layer's matrices."""
        hidden, heads, size = self.hidden_size, self.num_heads, self.head_size
        if self.latent is None:
            return 2 * hidden * heads * size + 2 * hidden * self.num_kv_heads * size
        kv_rank, rope, value, q_rank = astuple(self.latent)
        queries = heads * (size + rope)
        query = hidden * q_rank + q_rank * queries if q_rank else hidden * queries
        return int(
            query
            + hidden * (kv_rank + rope)
            + kv_rank * heads * (size + value)
            + heads * value * hidden
        )

    @property
    def layer_params(self) -> int:
        """Weights of the linear layers of one transformer layer without experts."""
        return self.attention_params + self.ffn_matrices * self.hidden_size * self.ffn_size

    @property
    def expert_params(self) -> int:
        """Weights of one expert of one layer; 0 where there are none."""
        return self.ffn_matrices * self.hidden_size * (self.experts or NO_EXPERTS).size

    @property
    def num_expert_layers(self) -> int:
        """Layers whose feed-forward network is a mixture of experts."""
        return self.ffn_layers - self.experts.num_dense_layers if self.experts else 0

    @property
    def dense_params(self) -> int:
        """Weights of all layers that multiply every token."""
        states = self.states.num_layers * self.states.params if self.states else 0
        experts, mixed = self.experts or NO_EXPERTS, self.num_expert_layers
        columns = (self.ffn_layers - mixed) * self.ffn_size + mixed * experts.shared_size
        ffn = self.hidden_size * (self.ffn_matrices * columns + mixed * experts.count)
        return self.num_attention_layers * self.attention_params + states + ffn

    @property
    def linear_params(self) -> int:
        """Weights of all layers and of the output projection."""
        return self._params((self.experts or NO_EXPERTS).count)

    @property
    def active_params(self) -> int:
        """Weights that multiply one token: with experts, only those that it goes through."""
        return self._params((self.experts or NO_EXPERTS).per_token)

    def _params(self, experts_per_layer: int) -> int:
        routed = self.num_expert_layers * experts_per_layer * self.expert_params
        return self.dense_params + routed + self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All weights, the input embedding included."""
        return self.linear_params + (
            0 if self.tied_embedding else self.vocab_size * self.hidden_size
        )

    @property
    def weight_bytes(self) -> int:
        embedding = (
            0 if self.tied_embedding else self.vocab_size * self.hidden_size * self.dtype_bytes
        )
        return round(self.read_bytes((self.experts or NO_EXPERTS).count)) + embedding

    def read_bytes(self, experts_per_layer: float) -> float:
        """Bytes of the weights of an iteration whose tokens go through so many different experts of
        each layer.
        """
        bits = self.weight_bits or 8 * self.dtype_bytes
        expert_bits = (self.experts or NO_EXPERTS).bits or bits
        routed = self.num_expert_layers * experts_per_layer * self.expert_params
        head = self.vocab_size * self.hidden_size * self.dtype_bytes
        return self.dense_params * bits / 8 + routed * expert_bits / 8 + head

    def kv_copies(self, num_gpus: int) -> int:
        """How many GPUs of num_gpus in tensor parallelism store the same K and V: heads and latents
        are not split.
        """
        return max(1, num_gpus // (1 if self.latent else self.num_kv_heads))


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU's data sheet. Bandwidths in bytes/s, fp16_flops in FLOP/s of the dense tensor cores.

    device is the name that the driver prints, which a profile records as the measured GPU; empty
    where unknown. transfers: the file of `testbed gpu measure transfers` on such a GPU, or the
    name of one that ships; None: transfers to the host take their bytes over host_bandwidth.
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float
    fp16_flops: float
    host_bandwidth: float
    link_bandwidth: float
    device: str = ""
    transfers: str | None = None


@dataclass(frozen=True, slots=True)
class TierSpec:
    """Memory below the GPUs, size_gib GiB of it for KV cache.

    Bandwidths in bytes/s of all GPUs together, read towards them; None: the GPUs' links to the host
    by their data sheet. latency_s: seconds before the first byte; extent_s: seconds more for every
    run of adjacent slots.
    """

    size_gib: float
    read_bandwidth: float | None = None
    write_bandwidth: float | None = None
    latency_s: float = 0.0
    extent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """num_gpus GPUs that serve one model by tensor parallelism.

    kv_memory_gib maps model names to KV pool sizes in GiB over all GPUs (the paper's Table 1); the
    pool of any other model is what `memory_utilization` leaves after weights and `workspace_gib`
    per GPU. tiers: the memories below, from the fastest to the slowest.
    """

    name: str
    gpu: GpuSpec
    num_gpus: int
    kv_memory_gib: Mapping[str, float] = field(default_factory=dict)
    memory_utilization: float = 0.95
    workspace_gib: float = 1.0
    tiers: Mapping[str, TierSpec] | None = None

    def kv_pool_bytes(self, model: ModelSpec) -> int:
        """Bytes for the KV cache of `model`, summed over the GPUs; negative where the weights do
        not fit.
        """
        if model.name in self.kv_memory_gib:
            return int(self.kv_memory_gib[model.name] * GIB)
        usable = self.memory_utilization * self.gpu.memory_bytes - self.workspace_gib * GIB
        return int(self.num_gpus * usable) - model.weight_bytes

    def kv_slots(self, model: ModelSpec, block_size: int = 1) -> int:
        """Slots of the KV pool, cut to whole blocks of block_size slots."""
        block_bytes = model.kv_bytes_per_token * model.kv_copies(self.num_gpus) * block_size
        blocks = self.kv_pool_bytes(model) // block_bytes
        if blocks < 1:
            raise InputError(
                f"{model.name} on {self.name}: leaves no memory for a KV cache (choose a larger "
                f"server)"
            )
        return blocks * block_size
