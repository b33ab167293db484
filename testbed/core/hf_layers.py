"""The parts of layers that a Hugging Face config.json describes: windows, experts, latents, states, quantization."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.layers import Experts, Latent, States, Window

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
FP8_BLOCK_BITS = 8 + 32 / 128**2  # a weight, and its share of the scale of a block of 128 x 128
MXFP4_BITS = 4 + 8 / 32  # a weight, and its share of the scale of 32 of them
# Fields that change what is cached or how many weights there are; one that the model's type does not read is an error.
MEMORY = (
    "attention_chunk_size", "cross_attention_layers", "full_attention_interval", "hybrid_override_pattern",
    "index_topk", "kv_lora_rank", "layer_types", "layers_block_type", "n_routed_experts", "num_experts",
    "num_kv_shared_layers", "num_local_experts", "quantization_config", "sliding_window", "ssm_state_size",
    "use_sliding_window", "vision_config",
)  # fmt: skip


class Fields:
    """The values of a config.json, which know what was read; `path` is for messages."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self.path = path
        self._read = set[str]()

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or value < 1:
            raise InputError(f"{self.path}: {key}={value!r}: must be a whole number of at least 1")
        return value

    def check_memory(self) -> None:
        """No field that changes memory may be left unread."""
        for key in MEMORY:
            if key not in self._read and self._values.get(key) not in (None, False, 0, [], {}):
                kind = self._values.get("model_type")
                raise InputError(f"{self.path}: {key}={self._values[key]!r}: changes the memory of a model, and is not "
                                 f"supported for model_type {kind!r} (write the ModelSpec by hand)")  # fmt: skip


def window_of(fields: Fields, kind: str, num_layers: int) -> Window | None:
    """The layers with a sliding window: as layer_types lists them, else as the type's own code decides."""
    size = fields.get("sliding_window")
    types = fields.get("layer_types")
    if kind.startswith("qwen") and not fields.get("use_sliding_window", False):
        size = None
    if types is not None:
        known = {"full_attention", "sliding_attention"}
        if kind == "qwen3_next":
            known = {"full_attention", "linear_attention"}
        if not isinstance(types, list) or len(types) != num_layers or not set(types) <= known:
            raise InputError(f"{fields.path}: layer_types: must list {num_layers} of {', '.join(sorted(known))}")
        count = types.count("sliding_attention")
    elif kind.startswith("qwen"):
        count = max(0, num_layers - fields.get("max_window_layers", num_layers))
    elif kind in ("gemma2", "gpt_oss"):
        count = (num_layers + 1) // 2
    elif kind == "gemma3_text":
        count = num_layers - num_layers // fields.whole("sliding_window_pattern", 6)
    else:
        count = num_layers
    if not count or (size is None and types is None):
        return None
    return Window(fields.whole("sliding_window"), count)


def latent_of(fields: Fields) -> Latent:
    rank = fields.get("q_lora_rank", 0)
    return Latent(fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim"), fields.whole("v_head_dim"), rank)


def experts_of(fields: Fields, kind: str, bits: float | None) -> Experts | None:
    if kind in ("mixtral", "gpt_oss"):
        count, per_token = fields.whole("num_local_experts"), fields.whole("num_experts_per_tok")
        return Experts(count, per_token, fields.whole("intermediate_size"), bits=bits)
    if kind in ("qwen3_moe", "qwen3_next"):
        if fields.get("mlp_only_layers", []) or fields.get("decoder_sparse_step", 1) != 1:
            raise InputError(f"{fields.path}: mlp_only_layers, decoder_sparse_step: dense layers between those of "
                             "experts are not supported")  # fmt: skip
        size, shared = fields.whole("moe_intermediate_size"), fields.get("shared_expert_intermediate_size", 0)
        return Experts(fields.whole("num_experts"), fields.whole("num_experts_per_tok"), size, shared, 0, bits)
    if kind in ("deepseek_v2", "deepseek_v3"):
        if fields.get("moe_layer_freq", 1) != 1:
            raise InputError(f"{fields.path}: moe_layer_freq: dense layers between those of experts are not supported")
        size, count = fields.whole("moe_intermediate_size"), fields.whole("n_routed_experts")
        shared, dense = fields.get("n_shared_experts", 0) * size, fields.get("first_k_dense_replace", 0)
        return Experts(count, fields.whole("num_experts_per_tok"), size, shared, dense, bits)
    return None


def delta_net(fields: Fields, num_layers: int, dtype_bytes: int) -> States:
    """Qwen3-Next's gated delta net, in all layers but each full_attention_interval-th.

    Its states are of the model's type, as vLLM keeps them by default.
    """
    types = fields.get("layer_types")
    interval = fields.whole("full_attention_interval", 4)
    count = num_layers - num_layers // interval if types is None else types.count("linear_attention")
    key, value = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
    key_heads, value_heads = fields.whole("linear_num_key_heads"), fields.whole("linear_num_value_heads")
    keys, values, hidden = key * key_heads, value * value_heads, fields.whole("hidden_size")
    kernel, mixed = fields.whole("linear_conv_kernel_dim"), 2 * keys + values
    state = value_heads * key * value + (kernel - 1) * mixed
    params = hidden * (2 * keys + 2 * values + 2 * value_heads) + mixed * kernel + values * hidden
    return States(count, state * dtype_bytes, params)


def mamba(fields: Fields, count: int, dtype_bytes: int) -> States:
    """Nemotron-H's Mamba-2 layers; the recurrent state has the type that mamba_ssm_cache_dtype says."""
    heads, size, hidden = fields.whole("mamba_num_heads"), fields.whole("mamba_head_dim"), fields.whole("hidden_size")
    inner, width = heads * size, 2 * fields.whole("n_groups") * fields.whole("ssm_state_size")
    kernel = fields.whole("conv_kernel")
    kind = fields.get("mamba_ssm_cache_dtype", "auto")
    if kind != "auto" and kind not in DTYPE_BYTES:
        raise InputError(f"{fields.path}: mamba_ssm_cache_dtype={kind!r}: must be one of {', '.join(DTYPE_BYTES)}")
    state = inner * fields.whole("ssm_state_size") * DTYPE_BYTES.get(kind, dtype_bytes)
    params = hidden * (2 * inner + width + heads) + (inner + width) * kernel + inner * hidden
    return States(count, state + (kernel - 1) * (inner + width) * dtype_bytes, params)


def weight_bits(fields: Fields) -> tuple[float | None, float | None]:
    """Bits of a weight of the layers, and of the experts where these are quantized apart; None for the dtype's."""
    config = fields.get("quantization_config", {})
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if not config:
        return None, None
    if method == "fp8":
        return (FP8_BLOCK_BITS if config.get("weight_block_size") == [128, 128] else 8), None
    if method == "mxfp4":
        return None, MXFP4_BITS
    if method in ("gptq", "awq") and type(bits := config.get("bits")) is int and bits > 0:
        group = config.get("group_size", 128)
        return (bits + (16 + bits) / group if type(group) is int and group > 0 else bits), None
    raise InputError(f"{fields.path}: quantization_config.quant_method={method!r}: is none of fp8, mxfp4, gptq, awq "
                     "(give the unquantized config.json, and weight_bits)")  # fmt: skip
