"""Model shapes from Hugging Face's config.json."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.layers import Experts, Latent, States, Window
from testbed.core.specs import ModelSpec

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
FP8_BLOCK_BITS = 8 + 32 / 128**2  # a weight, and its share of the scale of a block of 128 x 128
MXFP4_BITS = 4 + 8 / 32  # a weight, and its share of the scale of 32 of them


@cache
def types() -> dict[str, Any]:
    """What is known of model types, as hf_types.toml says."""
    return tomllib.loads(Path(__file__).with_name("hf_types.toml").read_text(encoding="utf-8"))


def supported() -> list[str]:
    """The model types that can be read."""
    return list(types()["supported"])


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
        for key in types()["memory"]:
            if key not in self._read and self._values.get(key) not in (None, False, 0, [], {}):
                kind = self._values.get("model_type")
                raise InputError(
                    f"{self.path}: {key}={self._values[key]!r}: changes the memory of a model, and "
                    f"is not supported for model_type {kind!r} (write the ModelSpec by hand)"
                )


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
    if kind in _types("delta_net"):
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
        fields.whole("kv_lora_rank"),
        fields.whole("qk_rope_head_dim"),
        fields.whole("v_head_dim"),
        rank,
        index_bytes,
        index_params,
    )


def experts_of(fields: Fields, kind: str, bits: float | None) -> Experts | None:
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


def vision_params(config: Mapping[str, Any]) -> int | None:
    """Weights of the matrices of a vision transformer; None without one, or where its file does not
    say its size.

    A layer has four matrices of attention and two of a feed-forward network, or three where it is
    gated (Pixtral); patches are embedded by one more. Projectors are not counted.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    names = (
        ("hidden_size", "vt_hidden_size"),
        ("intermediate_size", "vt_intermediate_size"),
        ("depth", "num_hidden_layers", "vt_num_hidden_layers"),
    )
    sizes = [next((vision[key] for key in keys if key in vision), 0) for keys in names]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    hidden, ffn, layers = sizes
    gates = 3 if vision.get("model_type") == "pixtral" else 2
    patch = vision.get("patch_size", 0)
    embedded = 3 * patch * patch * vision.get("temporal_patch_size", 1) * hidden
    return int(layers * hidden * (4 * hidden + gates * ffn) + embedded)


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
    """Nemotron-H's Mamba-2 layers; the recurrent state has the type that mamba_ssm_cache_dtype
    says.
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


def weight_bits(fields: Fields) -> tuple[float | None, float | None]:
    """Bits of a weight of the layers, and of the experts where these are quantized apart; None for
    the dtype's.
    """
    config = fields.get("quantization_config", {})
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if not config:
        return None, None
    if method == "fp8":
        return (FP8_BLOCK_BITS if config.get("weight_block_size") == [128, 128] else 8), None
    if method == "mxfp4":
        return None, MXFP4_BITS
    if method == "compressed-tensors" and (bits := _compressed_bits(config)) is not None:
        return bits, None
    if method in ("gptq", "awq") and type(bits := config.get("bits")) is int and bits > 0:
        group = config.get("group_size", 128)
        return (bits + (16 + bits) / group if type(group) is int and group > 0 else bits), None
    raise InputError(
        f"{fields.path}: quantization_config.quant_method={method!r}: is none of fp8, mxfp4, gptq, "
        "awq, or compressed-tensors of one group of weights (give the unquantized config.json, and "
        "weight_bits)"
    )


def fp8_products(fields: Fields) -> bool | None:
    """Whether the layers multiply weights and activations in FP8, as vLLM does with checkpoints of
    fp8 and, of llm-compressor's, those whose inputs are floats of 8 bits; None: they do not.
    """
    config = fields.get("quantization_config", {})
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if method == "fp8":
        return True
    groups = config.get("config_groups") if method == "compressed-tensors" else None
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    group = next(iter(groups.values()))
    operands = (group.get("weights") or {}, group.get("input_activations") or {})
    kinds = {(operand.get("type"), operand.get("num_bits")) for operand in operands}
    return True if kinds == {("float", 8)} else None


def _compressed_bits(config: Mapping[str, Any]) -> float | None:
    """Bits of a weight of llm-compressor's format, with 16 for the scale of a group; None where
    groups differ or the format is not one of plain integers or floats.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    weights = next(iter(groups.values())).get("weights") or {}
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if type(bits) is not int or bits < 1:
        return None
    return bits + 16 / size if type(size) is int and size > 0 else bits


def _types(key: str) -> list[str]:
    """The model types that have a property of hf_types.toml."""
    return list(types()[key])


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config.json that describes the language model, with a supported name of its
    type; of a multimodal model, its text_config.
    """
    kind, text_defaults = config.get("model_type"), types()["text"]
    inner = config.get("text_config")
    text = dict(config)
    if isinstance(inner, Mapping):
        outer = {key: config[key] for key in types()["outer"] if key in config}
        text = {**outer, **text_defaults.get(kind, {}), **inner}
    else:
        text.pop("vision_config", None)
    text["model_type"] = types()["alias"].get(text.get("model_type"), text.get("model_type"))
    return text


def uncounted_parts(path: Path, shape: ModelSpec) -> str:
    """What a config.json names beside its language model, and no weight of the shape stands for."""
    if path.suffix == ".yaml":
        return ""
    config = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    if isinstance(config.get("vision_config"), Mapping):
        tower = "the vision tower, whose sizes the file does not give in full"
        parts.append("the projector of images" if shape.vision_params else tower)
    if isinstance(config.get("audio_config"), Mapping):
        parts.append("the audio tower")
    if text_of(config).get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers"):
        parts.append("layers for speculation, which are loaded only to speculate")
    return "; ".join(parts)


def model_of(path: Path, name: str | None = None) -> ModelSpec:
    """The shape in a config.json, named `name` or after its file; one with a ModelSpec's fields is
    read unchanged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file (give the config.json of a model)") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object (give the config.json of a model)")
    if "num_layers" in config and "ffn_matrices" in config:
        return read(
            ModelSpec,
            {key: value for key, value in config.items() if not key.startswith("_")},
            str(path),
        )
    named = name or _called(config, path)
    kind, vision = config.get("model_type"), vision_params(config)
    config = text_of(config)
    if config["model_type"] not in supported():
        listed = ", ".join((*supported(), *types()["text"], *types()["alias"]))
        raise InputError(
            f"{path}: model_type {kind!r} is none of the supported model types ({listed}); write "
            "the ModelSpec by hand"
        )
    try:
        return replace(shape_of(named, config, path), vision_params=vision)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None


def _called(config: Mapping[str, Any], path: Path) -> str:
    named = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return (
        named or (path.parent.name if path.stem == "config" else path.stem) or path.stem
    ).lower()


def shape_of(name: str, config: Mapping[str, Any], path: Path) -> ModelSpec:
    """The shape that the values of a config.json describe; `path` is for messages.

    OPT has two feed-forward matrices, and so has Nemotron-H; all others have gate, up and down, and
    may have fewer key and value heads than query heads. Weights of norms, biases and output gates
    are not counted.
    """
    fields, kind = Fields(config, path), config["model_type"]
    pattern = _pattern_of(fields, kind)
    layers = pattern["M"] + pattern["*"] if pattern else fields.whole("num_hidden_layers")
    hidden = fields.whole("hidden_size")
    _check_embedding(fields, kind, hidden)
    dtype = _dtype_bytes(fields)
    bits, expert_bits = weight_bits(fields)
    is_gated = kind not in ("opt", "nemotron_h")
    window = window_of(fields, kind, layers) if is_gated else None
    _check_per_layer_parts(fields)
    shape = ModelSpec(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        **_heads(fields, kind, hidden),
        ffn_size=_ffn_size(fields, kind),
        ffn_matrices=3 if is_gated else 2,
        vocab_size=fields.whole("vocab_size"),
        max_len=fields.whole("max_position_embeddings"),
        tied_embedding=bool(fields.get("tie_word_embeddings", kind in types()["tied"])),
        dtype_bytes=dtype,
        weight_bits=bits,
        fp8_products=fp8_products(fields),
        num_ffn_layers=pattern["-"] if pattern else None,
        gated_attention=True if kind in _types("gated") else None,
        shared_kv=True if fields.get("attention_k_eq_v") else None,
        window=window,
        latent=latent_of(fields) if kind in _types("latent") else None,
        experts=experts_of(fields, kind, expert_bits),
        states=_states_of(fields, kind, pattern, layers, dtype),
    )
    fields.check_memory()
    return shape


def _heads(fields: Fields, kind: str, hidden: int) -> dict[str, int]:
    """The heads of attention and their size, as the shape has them."""
    heads = fields.whole("num_attention_heads")
    return {
        "num_heads": heads,
        "num_kv_heads": _num_kv_heads(fields, kind, heads),
        "head_size": _head_size(fields, kind, hidden, heads),
    }


def _num_kv_heads(fields: Fields, kind: str, heads: int) -> int:
    """Heads of K and V, of a Gemma-4 those of its layers of full attention."""
    count = int(fields.get("num_key_value_heads", heads))
    if kind != "gemma4_text" or not fields.get("attention_k_eq_v", False):
        return count
    return fields.whole("num_global_key_value_heads", count)


def _ffn_size(fields: Fields, kind: str) -> int:
    """Columns of a dense feed-forward network; one of experts alone may not say it."""
    if kind == "llama4":
        return fields.whole("intermediate_size_mlp", 16384)
    if kind == "qwen3_5_moe":
        return fields.whole("intermediate_size", fields.whole("moe_intermediate_size"))
    return fields.whole("ffn_dim" if kind == "opt" else "intermediate_size")


def _check_per_layer_parts(fields: Fields) -> None:
    """Raise InputError for layers that share K and V, or have embeddings of their own (Gemma-4's
    E2B and E4B).
    """
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input", "use_double_wide_mlp"):
        if fields.get(key, 0):
            raise InputError(
                f"{fields.path}: {key}={fields.get(key)!r}: is not supported (write the ModelSpec "
                "by hand: layers that share K and V cache none of their own)"
            )


def _check_embedding(fields: Fields, kind: str, hidden: int) -> None:
    """Raise InputError for an OPT whose embedding is narrower than its layers."""
    if kind == "opt" and fields.get("word_embed_proj_dim", hidden) != hidden:
        raise InputError(
            f"{fields.path}: word_embed_proj_dim differs from hidden_size (OPT-350M): not supported"
        )


def _states_of(
    fields: Fields, kind: str, pattern: Counter[str], layers: int, dtype_bytes: int
) -> States | None:
    """The states of Mamba layers or gated delta nets; None for other models."""
    if kind in _types("delta_net"):
        return delta_net(fields, layers, dtype_bytes)
    return mamba(fields, pattern["M"], dtype_bytes) if pattern else None


def _dtype_bytes(fields: Fields) -> int:
    """Bytes of a weight and of a cached value."""
    dtype = fields.get("torch_dtype") or fields.get("dtype") or "float16"
    if dtype not in DTYPE_BYTES:
        raise InputError(
            f"{fields.path}: weights of {dtype!r}: none of {', '.join(DTYPE_BYTES)}: not supported"
        )
    return DTYPE_BYTES[dtype]


def _pattern_of(fields: Fields, kind: str) -> Counter[str]:
    """Nemotron-H's layers by kind: Mamba, attention and feed-forward networks; those of other types
    are alike.
    """
    if kind != "nemotron_h":
        return Counter()
    pattern = fields.get("hybrid_override_pattern", "")
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*-"):
        raise InputError(
            f"{fields.path}: hybrid_override_pattern={pattern!r}: must consist of M, * and - only"
        )
    return Counter(pattern)


def _head_size(fields: Fields, kind: str, hidden: int, heads: int) -> int:
    """The size of a query head; of a latent attention, its part without position, of Gemma-4 that
    of full attention.
    """
    if kind in _types("latent"):
        return fields.whole("qk_nope_head_dim")
    if kind == "gemma4_text":
        return fields.whole("global_head_dim", 512)
    size = fields.get("head_dim", fields.get("attention_head_dim"))
    if size is None and hidden % heads:
        raise InputError(
            f"{fields.path}: hidden_size {hidden} is no multiple of {heads} heads (set head_dim)"
        )
    return hidden // heads if size is None else int(size)
