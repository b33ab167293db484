"""Layers of a Hugging Face config.json that are not plain: windows, latents, experts, states."""

from collections import Counter

from testbed.core.errors import InputError
from testbed.core.hf_fields import Fields, types, types_with
from testbed.core.layers import Experts, Latent, States, Window

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def window_of(fields: Fields, kind: str, num_layers: int) -> Window | None:
    """The layers with a sliding window: as layer_types lists them, else as the type's own code
    decides.
    """
    size = fields.get("sliding_window")
    types = fields.get("layer_types")
    if kind.startswith("qwen") and not fields.get("use_sliding_window", False):
        size = None
    if kind == "llama4":  # vLLM stores all tokens of its chunked layers too
        fields.get("attention_chunk_size")
        return None
    if kind == "phi3" and size is not None and size >= fields.whole("max_position_embeddings"):
        return None
    if types is None:
        count = _num_windowed(fields, kind, num_layers)
    else:
        count = _checked_types(fields, kind, num_layers).count("sliding_attention")
    if not count or (size is None and types is None):
        return None
    if kind == "gemma4_text":
        heads = fields.whole("num_key_value_heads")
        return Window(fields.whole("sliding_window"), count, heads, fields.whole("head_dim", 256))
    return Window(fields.whole("sliding_window"), count)


def _checked_types(fields: Fields, kind: str, num_layers: int) -> list[str]:
    """The kind of each layer, as layer_types lists them; raises InputError for another kind, and
    for a list that is too long or too short.
    """
    types = fields.get("layer_types")
    kinds = {"full_attention", "sliding_attention"}
    if kind in types_with("delta_net"):
        kinds = {"full_attention", "linear_attention"}
    if not isinstance(types, list) or len(types) != num_layers or not set(types) <= kinds:
        raise InputError(
            f"{fields.path}: layer_types: must list {num_layers} of {', '.join(sorted(kinds))}"
        )
    return types


def _num_windowed(fields: Fields, kind: str, num_layers: int) -> int:
    """The number of layers with the window, by the code of the model's type."""
    if kind.startswith("qwen"):
        return int(max(0, num_layers - fields.get("max_window_layers", num_layers)))
    if kind in ("gemma2", "gpt_oss"):
        return (num_layers + 1) // 2
    if kind == "gemma3_text":
        return num_layers - num_layers // fields.whole("sliding_window_pattern", 6)
    return num_layers


def latent_of(fields: Fields) -> Latent:
    """Latent attention, with the indexer of a sparse one.

    vLLM stores a key of it in fp8 with a scale of 4 bytes for 128 values (DeepseekV32IndexerCache,
    release 0.33).
    """
    rank = fields.get("q_lora_rank", 0)
    index_bytes = index_params = 0
    if fields.get("index_topk"):
        size, heads = fields.whole("index_head_dim", 128), fields.whole("index_n_heads", 64)
        index_bytes = size + size // 128 * 4
        index_params = rank * heads * size + fields.whole("hidden_size") * (size + heads)
    return Latent(
        kv_rank=fields.whole("kv_lora_rank"),
        rope_size=fields.whole("qk_rope_head_dim"),
        v_size=fields.whole("v_head_dim"),
        q_rank=rank,
        index_bytes=index_bytes,
        index_params=index_params,
    )


def experts_of(fields: Fields, kind: str, bits: float | None) -> Experts | None:
    """The experts of a model's type, whose weights have `bits` bits (None: those of its dtype);
    None for a type without experts. Raises InputError where dense layers stand between those of
    experts.
    """
    names = next((entry for entry in types()["experts"] if kind in entry["types"]), None)
    if names is None:
        return _experts_beside_dense(fields, bits) if kind == "gemma4_text" else None
    if any(fields.get(key, value) != value for key, value in names["uniform"].items()):
        keys = ", ".join(names["uniform"])
        raise InputError(
            f"{fields.path}: {keys}: dense layers between those of experts are not supported"
        )
    size, some = (
        fields.whole(names["size"]),
        {key: fields.get(name, 0) for key, name in names["some"].items()},
    )
    shared = some["shared"] if "shared" in some else size * some.get("num_shared", 0)
    count, per_token = fields.whole(names["count"]), fields.whole("num_experts_per_tok")
    return Experts(count, per_token, size, shared, some.get("num_dense_layers", 0), bits)


def _experts_beside_dense(fields: Fields, bits: float | None) -> Experts | None:
    """Gemma-4's experts, whose layers have a dense network too: the columns that all share."""
    if not fields.get("enable_moe_block", False):
        return None
    return Experts(
        fields.whole("num_experts"),
        fields.whole("top_k_experts"),
        fields.whole("moe_intermediate_size"),
        fields.whole("intermediate_size"),
        bits=bits,
    )


def delta_net(fields: Fields, num_layers: int, dtype_bytes: int) -> States:
    """Gated delta nets, in all but each full_attention_interval-th layer.

    The convolution's state has the model's type, the recurrent one that which mamba_ssm_dtype says
    (vLLM's mamba_ssm_cache_dtype=auto), by default the model's too.
    """
    types = fields.get("layer_types")
    interval = fields.whole("full_attention_interval", 4)
    count = (
        num_layers - num_layers // interval if types is None else types.count("linear_attention")
    )
    key, value = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
    key_heads, value_heads = (
        fields.whole("linear_num_key_heads"),
        fields.whole("linear_num_value_heads"),
    )
    keys, values, hidden = key * key_heads, value * value_heads, fields.whole("hidden_size")
    kernel, mixed = fields.whole("linear_conv_kernel_dim"), 2 * keys + values
    state_type = fields.get("mamba_ssm_dtype")
    if state_type is not None and state_type not in DTYPE_BYTES:
        raise InputError(
            f"{fields.path}: mamba_ssm_dtype={state_type!r}: must be one of "
            f"{', '.join(DTYPE_BYTES)}"
        )
    state = value_heads * key * value * DTYPE_BYTES.get(state_type, dtype_bytes)
    state += (kernel - 1) * mixed * dtype_bytes
    params = hidden * (2 * keys + 2 * values + 2 * value_heads) + mixed * kernel + values * hidden
    return States(count, state, params, draft_bytes=mixed * dtype_bytes)


def mamba(fields: Fields, count: int, dtype_bytes: int) -> States:
    """Nemotron-H's Mamba-2 layers, `count` of them; the recurrent state has the type that
    mamba_ssm_cache_dtype says, the convolution's state dtype_bytes a value. Raises InputError for a
    type of unknown size.
    """
    heads, size, hidden = (
        fields.whole("mamba_num_heads"),
        fields.whole("mamba_head_dim"),
        fields.whole("hidden_size"),
    )
    inner, width = heads * size, 2 * fields.whole("n_groups") * fields.whole("ssm_state_size")
    kernel = fields.whole("conv_kernel")
    kind = fields.get("mamba_ssm_cache_dtype", "auto")
    if kind != "auto" and kind not in DTYPE_BYTES:
        raise InputError(
            f"{fields.path}: mamba_ssm_cache_dtype={kind!r}: must be one of "
            f"{', '.join(DTYPE_BYTES)}"
        )
    state = inner * fields.whole("ssm_state_size") * DTYPE_BYTES.get(kind, dtype_bytes)
    params = hidden * (2 * inner + width + heads) + (inner + width) * kernel + inner * hidden
    row = (inner + width) * dtype_bytes  # of the convolution
    return States(count, state + (kernel - 1) * row, params, draft_bytes=row)


def states_of(
    fields: Fields, kind: str, pattern: Counter[str], layers: int, dtype_bytes: int
) -> States | None:
    """The states of Mamba layers or gated delta nets; None for other models."""
    if kind in types_with("delta_net"):
        return delta_net(fields, layers, dtype_bytes)
    return mamba(fields, pattern["M"], dtype_bytes) if pattern else None


def dtype_bytes(fields: Fields) -> int:
    """Bytes of a weight and of a cached value."""
    dtype = fields.get("torch_dtype") or fields.get("dtype") or "float16"
    if dtype not in DTYPE_BYTES:
        raise InputError(
            f"{fields.path}: weights of {dtype!r}: none of {', '.join(DTYPE_BYTES)}: not supported"
        )
    return DTYPE_BYTES[dtype]
