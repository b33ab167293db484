"""The shape of a model, the data sheet of a GPU, and a server with its KV pool."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated

from annotated_types import Unit, doc

from testbed.core.config_model import model
from testbed.core.errors import DoesNotFit, InputError
from testbed.core.layers import (
    Chunks,
    Experts,
    KvGroup,
    Latent,
    Rope,
    States,
    Window,
)
from testbed.core.units import (
    Flops,
    Gib,
    LinkBandwidth,
    MemoryBandwidth,
    MemoryBytes,
    Positive,
    PositiveCount,
    PositiveTokens,
    Seconds,
    Share,
    TierBandwidth,
)

GIB = 1 << 30
LAYERS: dict[str, type] = {"window": Window, "latent": Latent, "experts": Experts, "states": States}
# Of pipeline stages alone
OF_STAGES = (
    "layer_order",
    "repeats_vocabulary",
    "repeats_embedding",
    "needs_experts",
    "has_uneven_bits",
)
# Of vLLM's classes alone, of the same weights
OF_VLLM = ("vision_heads", "routes_apart", "copies_shared", "eagle3_since", *OF_STAGES)
VARIANTS = (
    "gated_attention",
    "shared_kv",
    "vision_params",
    "vision_heads",
    "masks_images",
    "has_sinks",
    "needs_range",
    "caps_logits",
    "drafts_itself",
    "routes_apart",
    "copies_shared",
    "eagle3_since",
    "head_bits",
    "copied_bits",
    "input_params",
    *OF_STAGES,
)
# None in a plain model
SPECIAL = (
    "kv_dtype_bytes",
    "weight_bits",
    "fp8_products",
    "num_ffn_layers",
    "gated_attention",
    *LAYERS,
)
FP8_BITS = 9  # more than a weight of 8 bits takes with its share of a block's scale


@model
class ModelSpec:
    """Shape of a decoder-only transformer: all values that determine bytes and FLOPs."""

    name: Annotated[str, doc("name of the model")]
    num_layers: Annotated[PositiveCount, doc("transformer layers")]
    hidden_size: Annotated[PositiveCount, doc("values of a token's activation")]
    num_heads: Annotated[PositiveCount, doc("heads of a query")]
    num_kv_heads: Annotated[PositiveCount, doc("heads of K and V")]
    head_size: Annotated[PositiveCount, doc("values of a head")]
    ffn_size: Annotated[PositiveCount, doc("columns of the feed-forward network")]
    ffn_matrices: Annotated[
        PositiveCount, doc("2 for OPT (up, down), 3 for LLaMA (gate, up, down)")
    ]
    vocab_size: Annotated[PositiveCount, doc("tokens of the vocabulary")]
    max_len: Annotated[PositiveTokens, doc("longest sequence")]
    tied_embedding: Annotated[
        bool, doc("whether the output projection is the embedding matrix")
    ] = False
    dtype_bytes: Annotated[PositiveCount, Unit("bytes"), doc("of a weight and a cached value")] = 2
    kv_dtype_bytes: Annotated[
        PositiveCount | None, Unit("bytes"), doc("of a cached value; null: dtype_bytes")
    ] = None
    weight_bits: Annotated[
        Positive | None,
        doc("bits of a weight of the layers; embedding and output projection keep dtype_bytes"),
    ] = None
    head_bits: Annotated[
        Positive | None, doc("bits of a weight of the output projection; null: as the embedding")
    ] = None
    copied_bits: Annotated[
        Positive | None,
        doc("of a weight of which GPUs have copies: to K and V, or latents; null: weight_bits"),
    ] = None
    fp8_products: Annotated[
        bool | None,
        doc(
            "whether weights of 8 bits multiply activations in FP8, at the fp8_flops of a GPU that "
            "has them; null: in 16 bits, whatever the weights' type"
        ),
    ] = None
    num_ffn_layers: Annotated[
        PositiveCount | None, doc("layers with a feed-forward network; null: all")
    ] = None
    gated_attention: Annotated[
        bool | None, doc("whether a gate as large as the queries' projection is behind attention")
    ] = None
    shared_kv: Annotated[
        bool | None, doc("whether layers of full attention project K and V by one matrix")
    ] = None
    vision_params: Annotated[
        PositiveCount | None, doc("weights of a vision tower, which no token of text goes through")
    ] = None
    vision_heads: Annotated[
        PositiveCount | None,
        doc("heads of a vision tower that vLLM divides among GPUs; null: it divides none"),
    ] = None
    masks_images: Annotated[
        bool | None, doc("whether tokens of an image attend to each other, later ones too")
    ] = None
    has_sinks: Annotated[
        bool | None, doc("whether attention has sinks, which few attention backends compute")
    ] = None
    needs_range: Annotated[
        bool | None, doc("whether vLLM refuses to serve it in float16, whose range is too small")
    ] = None
    caps_logits: Annotated[
        bool | None, doc("whether attention caps its logits, which few attention backends compute")
    ] = None
    drafts_itself: Annotated[
        bool | None, doc("whether its checkpoint has layers that draft tokens (MTP)")
    ] = None
    routes_apart: Annotated[
        bool | None,
        doc("whether FlashInfer's kernels for Blackwell do not choose and weigh a token's experts"),
    ] = None
    copies_shared: Annotated[
        bool | None,
        doc(
            "whether each GPU has all columns that tokens share if tensor and data parallelism "
            "divide the experts"
        ),
    ] = None
    eagle3_since: Annotated[
        str | None,
        doc("first release of vLLM known to give EAGLE-3 its hidden states, or never; null: all"),
    ] = None
    input_params: Annotated[
        PositiveCount | None,
        doc("weights of projections before the layers, by which a drafter joins hidden states"),
    ] = None
    layer_order: Annotated[
        str | None,
        doc(
            "kinds of layers from the first on, repeated to the last: f full attention, w window, "
            "c chunks, s state, - and e a feed-forward network or experts alone; null: all alike"
        ),
    ] = None
    repeats_vocabulary: Annotated[
        str | None,
        doc(
            "last release of vLLM known to load embedding and output projection on every pipeline "
            "stage; null: none does"
        ),
    ] = None
    repeats_embedding: Annotated[
        bool | None, doc("whether vLLM loads the embedding on every pipeline stage")
    ] = None
    needs_experts: Annotated[
        bool | None, doc("whether vLLM refuses a pipeline stage without experts")
    ] = None
    has_uneven_bits: Annotated[
        bool | None, doc("whether the same matrix has other bits in some layers than in others")
    ] = None
    rope: Annotated[Rope | None, doc("lengths of a rope that stretches positions")] = None
    window: Annotated[Window | None, doc("sliding windows")] = None
    chunks: Annotated[Chunks | None, doc("layers of chunked attention")] = None
    latent: Annotated[Latent | None, doc("multi-head latent attention")] = None
    experts: Annotated[Experts | None, doc("a mixture of experts")] = None
    states: Annotated[States | None, doc("layers with a state")] = None

    def __post_init__(self) -> None:
        if self.kv_dtype_bytes == self.dtype_bytes:
            object.__setattr__(self, "kv_dtype_bytes", None)
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                key="model",
                value=self.name,
                problem=(
                    f"{self.num_heads} heads do not share {self.num_kv_heads} heads of K and V "
                    "evenly (num_heads, num_kv_heads)"
                ),
            )
        if self.fp8_products and not self.fp8_params(1):
            raise InputError(
                key=f"model {self.name}: fp8_products",
                problem=f"its weights have {self.weight_bits or 8 * self.dtype_bytes:g} bits",
                remedy="model.weight_bits=8, or model.fp8_products=null",
            )
        in_window = self.window.num_layers if self.window else 0
        if self.num_attention_layers < max(in_window, 1):
            raise InputError(
                key="model",
                value=self.name,
                problem=(
                    f"{self.num_layers} layers are too few for {in_window} of window and "
                    f"{self.num_layers - self.num_attention_layers} of states"
                ),
            )
        if self.experts and self.experts.num_dense_layers > self.ffn_layers:
            raise InputError(
                key=f"model {self.name}: experts.num_dense_layers",
                value=self.experts.num_dense_layers,
                problem=f"there are only {self.ffn_layers} layers",
            )

    def is_shaped_like(self, other: "ModelSpec") -> bool:
        """True if both compute the same: neither the name nor the longest sequence is part of a
        shape, nor where its layers lie.
        """
        free = ("name", "max_len", "tied_embedding", *OF_VLLM)
        return self == replace(other, **{name: getattr(self, name) for name in free})

    @property
    def is_plain(self) -> bool:
        """True if all layers are full attention and one dense network, with one type of weights and
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
        """Bytes that a layer of full attention caches for each token: K and V, or the latent vector
        with the key of its indexer.
        """
        value_bytes = self.kv_dtype_bytes or self.dtype_bytes
        if self.latent:
            values = self.latent.kv_rank + self.latent.rope_size
            row = self.latent.packed_bytes or values * value_bytes
            return row + self.latent.index_bytes
        return 2 * self.num_kv_heads * self.head_size * value_bytes

    @property
    def window_slot_bytes(self) -> int:
        """Bytes that a layer with a window caches for each token."""
        if self.window is None or not self.has_uneven_heads:
            return self.slot_bytes
        heads, size = self.heads_of_windows()
        return 2 * heads * size * (self.kv_dtype_bytes or self.dtype_bytes)

    @property
    def has_uneven_heads(self) -> bool:
        """True if layers with a window have other heads than those of full attention."""
        full = self.num_kv_heads, self.head_size
        return self.window is not None and self.heads_of_windows() != full

    def heads_of_windows(self) -> tuple[int, int]:
        """Heads of K and V of a layer with a window, and the values of one."""
        assert self.window is not None, "the model has no windows"
        return (
            self.window.num_kv_heads or self.num_kv_heads,
            self.window.head_size or self.head_size,
        )

    @property
    def groups(self) -> tuple[KvGroup, ...]:
        """The layers by the form of their cache; full attention comes first, states last."""
        in_window = self.window.num_layers if self.window else 0
        groups = [
            KvGroup(
                "latent" if self.latent else "full",
                self.num_attention_layers - in_window,
                self.slot_bytes,
            )
        ]
        if self.window:
            groups.append(KvGroup("window", in_window, self.window_slot_bytes, self.window.size))
        if self.states:
            state_bytes = self.states.state_bytes or self.states.num_tokens * self.slot_bytes
            groups.append(
                KvGroup(
                    name="state",
                    num_layers=self.states.num_layers,
                    slot_bytes=0,
                    window=None,
                    state_bytes=state_bytes,
                )
            )
        return tuple(group for group in groups if group.num_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes cached for one token in all layers, windows not cut (section 3: 800 KiB for
        OPT-13B).
        """
        return sum(group.num_layers * group.slot_bytes for group in self.groups)

    @property
    def attention_params(self) -> int:
        """Weights of the matrices of one layer of full attention."""
        hidden, heads, size = self.hidden_size, self.num_heads, self.head_size
        if self.latent is None:
            return self._attention_params(self.num_kv_heads, size, 1 if self.shared_kv else 2)
        kv_rank, rope = self.latent.kv_rank, self.latent.rope_size
        value, q_rank = self.latent.v_size, self.latent.q_rank
        queries = heads * (size + rope)
        query = hidden * q_rank + q_rank * queries if q_rank else hidden * queries
        return int(
            query
            + hidden * (kv_rank + rope)
            + kv_rank * heads * (size + value)
            + heads * value * hidden
            + self.latent.index_params
        )

    def _attention_params(self, num_kv_heads: int, head_size: int, kv_matrices: int) -> int:
        """Weights of a layer's queries and output, gate, and K and V."""
        of_heads = 3 if self.gated_attention else 2  # matrices with a part for each query head
        values = of_heads * self.num_heads + kv_matrices * num_kv_heads
        return self.hidden_size * head_size * values

    @property
    def layer_params(self) -> int:
        """Weights of the linear layers of one transformer layer without experts."""
        return self.attention_params + self.ffn_matrices * self.hidden_size * self.ffn_size

    @property
    def expert_params(self) -> int:
        """Weights of one expert of one layer; 0 if there are none."""
        if self.experts is None:
            return 0
        width = self.experts.latent_size or self.hidden_size
        return self.ffn_matrices * width * self.experts.size

    @property
    def latent_params(self) -> int:
        """Weights of all projections to the narrower vectors of experts, and back."""
        latent = self.experts.latent_size if self.experts else 0
        return 2 * self.num_expert_layers * self.hidden_size * latent

    @property
    def num_expert_layers(self) -> int:
        """Layers whose feed-forward network is a mixture of experts."""
        if self.experts is None:
            return 0
        return (self.ffn_layers - self.experts.num_dense_layers) // self.experts.step

    @property
    def dense_params(self) -> int:
        """Weights of all layers that multiply every token."""
        states = self.states.num_layers * self.states.params if self.states else 0
        mixed = self.num_expert_layers
        columns, routers = (self.ffn_layers - mixed) * self.ffn_size, 0
        if self.experts:
            columns += mixed * self.experts.shared_size
            routers = mixed * self.experts.count
        ffn = self.hidden_size * (self.ffn_matrices * columns + routers)
        attention = self.num_attention_layers * self.attention_params
        if self.window and self.has_uneven_heads:
            of_window = self._attention_params(*self.heads_of_windows(), 2)
            attention += self.window.num_layers * (of_window - self.attention_params)
        apart = (self.input_params or 0) + self.latent_params
        return apart + attention + states + ffn

    @property
    def linear_params(self) -> int:
        """Weights of all layers and of the output projection."""
        return self._params(self.experts.count if self.experts else 0)

    @property
    def active_params(self) -> int:
        """Weights that multiply one token: with experts, only those that it goes through."""
        return self._params(self.experts.per_token if self.experts else 0)

    def _params(self, experts_per_layer: int) -> int:
        routed = self.num_expert_layers * experts_per_layer * self.expert_params
        return self.dense_params + routed + self.vocab_size * self.hidden_size

    def fp8_params(self, experts_per_layer: int) -> float:
        """Weights that multiply one token in FP8, which goes through so many experts of a layer."""
        if not self.fp8_products:
            return 0.0
        of_experts = (self.experts.bits if self.experts else None) or self.weight_bits
        routed = self.num_expert_layers * experts_per_layer * self.expert_params
        dense = self._fp8_share(self.weight_bits) * self.dense_params
        return dense + self._fp8_share(of_experts) * routed

    def _fp8_share(self, bits: float | None) -> float:
        """The share of 8 bits among weights of this mean, whose others have dtype_bytes."""
        if bits is None or bits < 8:
            return 0.0
        usual = 8 * self.dtype_bytes
        return 1.0 if bits < FP8_BITS else max(0.0, (usual - bits) / (usual - 8))

    @property
    def num_params(self) -> int:
        """All weights, those of the input embedding and of a vision tower included."""
        embedding = 0 if self.tied_embedding else self.vocab_size * self.hidden_size
        return self.linear_params + embedding + (self.vision_params or 0)

    @property
    def weight_bytes(self) -> int:
        apart = 0 if self.tied_embedding else self.vocab_size * self.hidden_size
        apart += self.vision_params or 0
        layers = round(self.read_bytes(self.experts.count if self.experts else 0))
        return layers + apart * self.dtype_bytes

    def read_bytes(self, experts_per_layer: float) -> float:
        """Bytes of the weights of an iteration whose tokens go through experts_per_layer different
        experts of each layer.
        """
        bits = self.weight_bits or 8 * self.dtype_bytes
        head = self.vocab_size * self.hidden_size * (self.head_bits or 8 * self.dtype_bytes) / 8
        return self.dense_params * bits / 8 + self.expert_bytes(experts_per_layer) + head

    def expert_bytes(self, experts_per_layer: float) -> float:
        """Bytes of experts_per_layer experts of each layer that has any."""
        bits = (self.experts.bits if self.experts else None) or self.weight_bits
        routed = self.num_expert_layers * experts_per_layer * self.expert_params
        return routed * (bits or 8 * self.dtype_bytes) / 8

    def heads_problem(self, num_gpus: int) -> str:
        """The reason why the heads cannot be divided among num_gpus GPUs; empty if they can."""
        if self.num_heads % num_gpus:
            return f"{self.num_heads} attention heads must be divisible by tensor parallel size"
        if self.has_sinks and num_gpus > self.num_kv_heads:
            return f"{self.num_kv_heads} heads of K and V with attention sinks are not copied"
        in_windows = self.heads_of_windows()[0] if self.window else self.num_kv_heads
        for heads in (self.num_kv_heads, in_windows):
            few, many = sorted((heads, num_gpus))
            if not self.latent and many % few:
                return (
                    f"{heads} heads of K and V can be neither divided among the GPUs nor copied "
                    "evenly"
                )
        return ""

    def kv_copies(self, num_gpus: int) -> int:
        """The number of GPUs, of num_gpus in tensor parallelism, that store the same K and V in
        layers of full attention: heads and latents are not split.
        """
        return max(1, num_gpus // (1 if self.latent else self.num_kv_heads))

    def groups_on(self, num_gpus: int) -> tuple[KvGroup, ...]:
        """The layers by the form of their cache, whose bytes are those of all copies."""
        copies = in_windows = self.kv_copies(num_gpus)
        if self.window and self.has_uneven_heads:
            in_windows = max(1, num_gpus // self.heads_of_windows()[0])
        return tuple(
            replace(group, slot_bytes=group.slot_bytes * (in_windows if group.window else copies))
            for group in self.groups
        )

    def kv_bytes_on(self, num_gpus: int) -> int:
        """Bytes that num_gpus GPUs cache for one token in all layers, each copy counted."""
        return sum(group.num_layers * group.slot_bytes for group in self.groups_on(num_gpus))


@model
class GpuSpec:
    """A GPU's data sheet."""

    name: Annotated[str, doc("our name of the GPU")]
    memory_bytes: Annotated[MemoryBytes, doc("its memory, as the driver reports it")]
    memory_bandwidth: Annotated[MemoryBandwidth, doc("of its memory")]
    fp16_flops: Annotated[Flops, doc("of the tensor cores with dense matrices")]
    host_bandwidth: Annotated[LinkBandwidth, doc("to the host, each way")]
    link_bandwidth: Annotated[LinkBandwidth, doc("to other GPUs, each way")]
    device: Annotated[
        str, doc("name that the driver prints, and profiles record; empty: unknown")
    ] = ""
    fp8_flops: Annotated[
        Flops | None,
        doc("of the tensor cores with dense FP8 matrices; null: they multiply no FP8"),
    ] = None
    transfers: Annotated[
        str | None,
        doc(
            "file of `testbed gpu measure transfers`, or the name of one that ships; "
            "null: bytes over host_bandwidth"
        ),
    ] = None


@model
class TierSpec:
    """Memory below the GPUs. Bandwidths are of all GPUs together, read towards them; those of a
    shared tier are of its one link, which all engines use, and so is its size.
    """

    size_gib: Annotated[Gib, doc("memory for KV cache")]
    read_bandwidth: Annotated[
        TierBandwidth | None, doc("null: the GPUs' links to the host by their data sheet")
    ] = None
    write_bandwidth: Annotated[TierBandwidth | None, doc("null: the same")] = None
    latency_s: Annotated[Seconds, doc("before the first byte")] = 0.0
    extent_s: Annotated[Seconds, doc("more for every run of adjacent slots")] = 0.0
    shared: Annotated[bool, doc("one for all replicas, with one link; false: each has its own")] = (
        False
    )

    def __post_init__(self) -> None:
        if self.shared and None in (self.read_bandwidth, self.write_bandwidth):
            raise InputError(
                key="server.tiers",
                problem="a shared tier has one link, whose speed the GPUs' data sheet does not say",
                remedy="give its read_bandwidth and write_bandwidth",
            )


@model
class ServerSpec:
    """GPUs that serve one model by tensor parallelism.

    The pool of a model that kv_memory_gib does not name is the memory that memory_utilization
    leaves after weights and workspace_gib on each GPU.
    """

    name: Annotated[str, doc("name of the server")]
    gpu: Annotated[GpuSpec, doc("data sheet of the GPUs")]
    num_gpus: Annotated[PositiveCount, doc("GPUs")]
    kv_memory_gib: Annotated[
        Mapping[str, Gib], doc("KV pool over all GPUs by model name (Table 1)")
    ] = field(default_factory=dict)
    memory_utilization: Annotated[Share, doc("share of each GPU's memory that is used")] = 0.95
    workspace_gib: Annotated[Gib, doc("on each GPU that neither weights nor KV cache get")] = 1.0
    tiers: Annotated[
        Mapping[str, TierSpec] | None,
        doc("memories below by name, from the fastest to the slowest"),
    ] = None

    @property
    def shared_tiers(self) -> tuple[str, ...]:
        """The names of the tiers that all engines use together."""
        return tuple(name for name, tier in (self.tiers or {}).items() if tier.shared)

    def kv_pool_bytes(self, model: ModelSpec) -> int:
        """Bytes for the KV cache of `model`, summed over the GPUs; negative if the weights do
        not fit.
        """
        if model.name in self.kv_memory_gib:
            return int(self.kv_memory_gib[model.name] * GIB)
        usable = self.memory_utilization * self.gpu.memory_bytes - self.workspace_gib * GIB
        return int(self.num_gpus * usable) - model.weight_bytes

    def kv_slots(
        self,
        model: ModelSpec,
        block_size: int = 1,
        *,
        more_token_bytes: int = 0,
        more_weight_bytes: int = 0,
    ) -> int:
        """Slots of the KV pool, cut to whole blocks of block_size slots. A drafter takes more bytes
        for each token, and its weights, which a pool of given size does not contain.
        """
        token_bytes = model.kv_bytes_on(self.num_gpus) + more_token_bytes
        pool_bytes = self.kv_pool_bytes(model)
        if model.name not in self.kv_memory_gib:
            pool_bytes -= more_weight_bytes
        blocks = pool_bytes // (token_bytes * block_size)
        if blocks < 1:
            raise DoesNotFit(
                key=f"{model.name} on {self.name}",
                problem="leaves no memory for a KV cache",
                remedy="choose a larger server",
            )
        return blocks * block_size
