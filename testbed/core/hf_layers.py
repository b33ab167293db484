"""Layers of a Hugging Face config.json that are not plain: windows, latents, experts, states."""

from collections import Counter
from typing import Any

from testbed.core.errors import InputError
from testbed.core.hf_fields import Fields, types, types_with
from testbed.core.layer_order import period_of
from testbed.core.layers import Chunks, Experts, Latent, States, Window

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
FULL, WINDOWED, CHUNKED, STATE = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)
SPARSE = ("deepseek_sparse_attention", "indexed_attention")  # full, of tokens that are chosen
BLOCKS = {"mamba": "M", STATE: "M", "attention": "*", FULL: "*", "mlp": "-", "moe": "E"}
SHARED_INDEXER = "layers that share an indexer are not supported"
BOUND = "without index_topk_freq, index_topk_pattern and indexer_types each has one: more memory"
LETTERS = {FULL: "f", WINDOWED: "w", CHUNKED: "c", STATE: "s"}


def layer_kinds(fields: Fields, kind: str, num_layers: int) -> list[str]:
    """The kind of each layer: as layer_types lists them, else as the type's own class decides."""
    listed = fields.get("layer_types")
    if listed is None:
        return _kinds_of_class(fields, kind, num_layers)
    if kind in types_with("latent") and isinstance(listed, list):
        listed = [FULL if name in SPARSE else name for name in listed]
    allowed = [FULL, WINDOWED, *([CHUNKED] if kind == "llama4" else [])]
    if kind in types_with("delta_net"):
        allowed = [FULL, STATE]
    if kind in types_with("unlisted") and listed != _kinds_of_class(fields, kind, num_layers):
        raise fields.refusal(
            "layer_types", "a release's class does not read it, and has other layers"
        )
    is_list = isinstance(listed, list) and all(name in allowed for name in listed)
    if not is_list or len(listed) < num_layers:
        raise InputError(
            key=f"{fields.path}: layer_types",
            problem=f"must list {num_layers} of {', '.join(sorted(allowed))}",
        )
    if set(listed) == {FULL} and not _has_none(kind) and fields.is_given("sliding_window"):
        _refuse_windows(fields, "layer_types")
    return _last_is_full(kind, listed[:num_layers])


def order_of(fields: Fields, kind: str, num_layers: int) -> str:
    """The letters of the order in which layers stand (testbed/core/layer_order.py)."""
    if kind == "nemotron_h":
        pattern = letters_of_nemotron(fields)
        return period_of(pattern.translate(str.maketrans("M*E", "sfe")))
    if kind in types_with("delta_net") and fields.get("layer_types") is None:
        interval = fields.whole("full_attention_interval", 4)
        return period_of("".join("s" if i % interval else "f" for i in range(1, num_layers + 1)))
    kinds = layer_kinds(fields, kind, num_layers)
    return period_of("".join(LETTERS[name] for name in kinds))


def _kinds_of_class(fields: Fields, kind: str, num_layers: int) -> list[str]:
    """The kinds of layers if the file does not list them."""
    windows = types()["windows"]
    if kind in windows["pattern"]:
        pattern = fields.whole("sliding_window_pattern", windows["pattern"][kind])
        kinds = [FULL if (i + 1) % pattern == 0 else WINDOWED for i in range(num_layers)]
        return _last_is_full(kind, kinds)
    if kind == "llama4":
        return _chunked_unless_without_rope(fields, num_layers)
    if kind in types_with("qwen_windows"):
        first = fields.get("max_window_layers", num_layers) if _uses_window(fields) else num_layers
        return [WINDOWED if i >= first else FULL for i in range(num_layers)]
    has_none = _has_none(kind) or fields.get("sliding_window") is None
    return [FULL if has_none else WINDOWED] * num_layers


def _has_none(kind: str) -> bool:
    """True for a type whose layers have a window only if another key than its size asks for it."""
    names = ("latent", "delta_net", "qwen_windows")
    return kind in ("llama4", "smollm3") or any(kind in types_with(name) for name in names)


def _refuse_windows(fields: Fields, key: str) -> None:
    raise fields.refusal(
        key, "a release of vLLM has windows in all layers then, and another in none: not supported"
    )


def _last_is_full(kind: str, kinds: list[str]) -> list[str]:
    """Gemma-4's class makes the last layer one of full attention, whatever the file lists."""
    return [*kinds[:-1], FULL] if kind == "gemma4_text" else kinds


def _chunked_unless_without_rope(fields: Fields, num_layers: int) -> list[str]:
    """Llama-4's layers: each fourth has neither rope nor chunks."""
    ropes = fields.get("no_rope_layers") or [(i + 1) % 4 for i in range(num_layers)]
    return [CHUNKED if rope else FULL for rope in ropes]


def _uses_window(fields: Fields) -> bool:
    return bool(fields.get("use_sliding_window", False)) and bool(fields.get("sliding_window"))


def window_of(fields: Fields, kind: str, num_layers: int) -> Window | None:
    """The layers with a sliding window; raises InputError for some that vLLM refuses."""
    size = fields.get("sliding_window")
    kinds = layer_kinds(fields, kind, num_layers)
    if kind in types_with("qwen_windows"):
        return _window_of_all(fields, kind, kinds, num_layers)
    if kind == "smollm3" and _uses_window(fields):
        raise fields.refusal("use_sliding_window", "is not supported for model_type 'smollm3'")
    if kind == "phi3" and size is not None:
        size = fields.whole("sliding_window")
        size = size if size < fields.whole("max_position_embeddings") else None
    count = kinds.count(WINDOWED)
    if count and kind == "cohere2":  # its layers read the token and so many before it
        return Window(fields.whole("sliding_window") + 1, count, is_required=True)
    if not count or size is None:
        return None
    if kind == "gemma4_text":
        heads = fields.whole("num_key_value_heads")
        return Window(fields.whole("sliding_window"), count, heads, fields.whole("head_dim", 256))
    return Window(fields.whole("sliding_window"), count)


def _window_of_all(fields: Fields, kind: str, kinds: list[str], num_layers: int) -> Window | None:
    """Windows of a Qwen: vLLM has them in all layers or in none, whatever the list says."""
    uses_window = _uses_window(fields)
    if len(set(kinds)) > 1 and kind in ("qwen2", "qwen3"):
        if fields.get("max_window_layers") != num_layers:
            raise fields.does_not_start(
                "max_window_layers", "sliding window for some but not all layers is not supported"
            )
        return None
    is_split = kind == "qwen2_moe" or set(kinds) != {WINDOWED}
    if uses_window and kind != "qwen3_moe" and is_split:
        _refuse_windows(fields, "use_sliding_window")
    return Window(fields.whole("sliding_window"), num_layers) if uses_window else None


def chunks_of(fields: Fields, kind: str, num_layers: int) -> Chunks | None:
    """The layers with chunks, which Llama-4 alone has."""
    if kind != "llama4" or fields.get("attention_chunk_size") is None:
        return None
    count = layer_kinds(fields, kind, num_layers).count(CHUNKED)
    return Chunks(fields.whole("attention_chunk_size"), count) if count else None


def latent_of(fields: Fields, kind: str) -> Latent:
    """Latent attention, with the indexer of a sparse one.

    vLLM stores a key of it in fp8 with a scale of 4 bytes for 128 values (DeepseekV32IndexerCache).
    """
    rank = fields.count("q_lora_rank")
    index_bytes = index_params = 0
    for key, usual in (("index_topk_freq", 1), ("index_topk_pattern", None)):
        if fields.get(key, usual) != usual:
            raise fields.refusal(key, SHARED_INDEXER, BOUND)
    types_of_indexers = fields.get("indexer_types", [])
    if not isinstance(types_of_indexers, list) or set(map(str, types_of_indexers)) - {"full"}:
        raise fields.refusal("indexer_types", SHARED_INDEXER, BOUND)
    if fields.get("index_topk") is not None:
        fields.whole("index_topk")
        size, heads = fields.whole("index_head_dim"), fields.whole("index_n_heads")
        index_bytes = size + size // 128 * 4
        index_params = rank * heads * size + fields.whole("hidden_size") * (size + heads)
    return Latent(
        kv_rank=fields.whole("kv_lora_rank"),
        rope_size=fields.whole("qk_rope_head_dim"),
        v_size=fields.whole("v_head_dim"),
        q_rank=rank,
        index_bytes=index_bytes,
        index_params=index_params,
        prefers_fp8=True if kind == "glm_moe_dsa" else None,
    )


def experts_of(fields: Fields, kind: str) -> Experts | None:
    """The experts of a model's type; None for a type without experts. Raises InputError if dense
    layers stand between those of experts.
    """
    names = next((entry for entry in types()["experts"] if kind in entry["types"]), None)
    if names is None:
        return _experts_beside_dense(fields) if kind == "gemma4_text" else None
    uniform = dict(names["uniform"])
    if "last" in names and fields.get(names["last"], -1) != fields.whole("num_hidden_layers") - 1:
        uniform[names["last"]] = -1
    if any(fields.get(key, value) != value for key, value in uniform.items()):
        keys = ", ".join(uniform)
        raise InputError(
            key=f"{fields.path}: {keys}",
            problem="dense layers between those of experts are not supported",
        )
    size = fields.whole(names["size"])
    some = {key: fields.count(name) for key, name in names["some"].items()}
    shared = some["shared"] if "shared" in some else size * some.get("num_shared", 0)
    count = fields.whole(names["count"])
    per_token = fields.whole(names.get("per_token", "num_experts_per_tok"))
    num_dense = some.get("num_dense_layers", 0)
    step = fields.whole(names["step"], 1) if "step" in names else 1
    return Experts(count, per_token, size, shared, num_dense, step=step)


def _experts_beside_dense(fields: Fields) -> Experts | None:
    """Gemma-4's experts, whose layers have a dense network too: the columns that all share."""
    if not fields.get("enable_moe_block", False):
        return None
    return Experts(
        fields.whole("num_experts"),
        fields.whole("top_k_experts"),
        fields.whole("moe_intermediate_size"),
        fields.whole("intermediate_size"),
    )


def experts_in(fields: Fields, pattern: Counter[str]) -> Experts | None:
    """The experts of a Nemotron-H's layers, if some have any (Nemotron 3)."""
    if not pattern["E"]:
        return None
    return Experts(
        fields.whole("n_routed_experts"),
        fields.whole("num_experts_per_tok"),
        fields.whole("moe_intermediate_size"),
        fields.count("n_shared_experts") * fields.count("moe_shared_expert_intermediate_size"),
        pattern["-"],
        latent_size=fields.count("moe_latent_size"),
    )


def delta_net(fields: Fields, kind: str, num_layers: int, dtype_bytes: int) -> States:
    """Gated delta nets, in all but each full_attention_interval-th layer.

    The convolution's state has the model's type, the recurrent one that which mamba_ssm_dtype says
    (vLLM's mamba_ssm_cache_dtype=auto), by default the model's too.
    """
    interval = fields.whole("full_attention_interval", 4)
    listed = fields.get("layer_types")
    count = num_layers - num_layers // interval
    if listed is not None:
        count = layer_kinds(fields, kind, num_layers).count(STATE)
    key, value = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
    key_heads, value_heads = (
        fields.whole("linear_num_key_heads"),
        fields.whole("linear_num_value_heads"),
    )
    keys, values, hidden = key * key_heads, value * value_heads, fields.whole("hidden_size")
    kernel, mixed = fields.whole("linear_conv_kernel_dim"), 2 * keys + values
    state = value_heads * key * value * _state_bytes(fields, "mamba_ssm_dtype", dtype_bytes)
    state += (kernel - 1) * mixed * dtype_bytes
    params = hidden * (2 * keys + 2 * values + 2 * value_heads) + mixed * kernel + values * hidden
    draft_bytes = mixed * dtype_bytes
    return States(count, state, params, draft_bytes=draft_bytes, num_heads=value_heads)


def pattern_of(fields: Fields, kind: str) -> Counter[str]:
    """Nemotron-H's layers by kind: Mamba (M), attention (*), dense feed-forward networks (-) and
    experts (E); those of other types are alike.
    """
    if kind != "nemotron_h":
        return Counter()
    pattern = letters_of_nemotron(fields)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*-E"):
        raise InputError(
            key=f"{fields.path}: hybrid_override_pattern",
            value=repr(pattern),
            problem="must consist of M, *, - and E",
        )
    return Counter(pattern)


def letters_of_nemotron(fields: Fields) -> str:
    """A letter for each layer, as hybrid_override_pattern or layers_block_type has them. Raises
    InputError if they differ: releases follow the one or the other.
    """
    listed, pattern = fields.get("layers_block_type"), fields.get("hybrid_override_pattern")
    letters = pattern if isinstance(pattern, str) else "?"
    if isinstance(listed, list):
        letters = letters_of_blocks(listed)
        if pattern not in (None, letters):
            raise fields.refusal("hybrid_override_pattern", "differs from layers_block_type")
    return letters


def letters_of_blocks(names: Any) -> str:
    """The letters of layers with these names; "?" for one that is not known, and for no list."""
    return "".join(BLOCKS.get(str(name), "?") for name in names) if isinstance(names, list) else "?"


def _state_bytes(fields: Fields, key: str, usual: int) -> int:
    """Bytes of a value of the recurrent state; raises InputError for a type of unknown size."""
    state_type = fields.get(key)
    if state_type in (None, "auto"):
        return usual
    if not isinstance(state_type, str) or state_type not in DTYPE_BYTES:
        raise InputError(
            key=f"{fields.path}: {key}",
            value=repr(state_type),
            problem=f"must be one of {', '.join(DTYPE_BYTES)}",
        )
    return DTYPE_BYTES[state_type]


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
    groups = fields.whole("n_groups")
    inner, width = heads * size, 2 * groups * fields.whole("ssm_state_size")
    kernel = fields.whole("conv_kernel")
    value_bytes = _state_bytes(fields, "mamba_ssm_cache_dtype", dtype_bytes)
    state = inner * fields.whole("ssm_state_size") * value_bytes
    params = hidden * (2 * inner + width + heads) + (inner + width) * kernel + inner * hidden
    row = (inner + width) * dtype_bytes  # of the convolution
    is_given = fields.is_given("mamba_ssm_cache_dtype")
    untyped = 0 if is_given else inner * fields.whole("ssm_state_size")
    state += (kernel - 1) * row
    chunk = fields.whole("mamba_chunk_size", fields.whole("chunk_size"))
    return States(
        count,
        state,
        params,
        draft_bytes=row,
        chunk_size=chunk,
        untyped_values=untyped,
        num_groups=groups,
    )


def states_of(
    fields: Fields, kind: str, pattern: Counter[str], layers: int, dtype_bytes: int
) -> States | None:
    """The states of Mamba layers or gated delta nets; None for other models."""
    if kind in types_with("delta_net"):
        return delta_net(fields, kind, layers, dtype_bytes)
    return mamba(fields, pattern["M"], dtype_bytes) if pattern else None


def dtype_bytes(fields: Fields) -> int:
    """Bytes of a weight and of a cached value: vLLM serves a float32 checkpoint in bfloat16."""
    dtype = fields.get("torch_dtype") or fields.get("dtype") or "float16"
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise InputError(
            key=fields.path,
            problem=f"weights of {dtype!r}: none of {', '.join(DTYPE_BYTES)}: not supported",
        )
    return min(DTYPE_BYTES[dtype], 2)
