"""Variations of a config.json: each key absent, null, or odd but valid; each rope; each dtype and
quantization.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]

KEYS = (
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "max_position_embeddings",
    "tie_word_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
    "dtype",
    "mamba_ssm_dtype",
    "q_lora_rank",
    "intermediate_size",
)
NULLS = KEYS[:9]
ODD: Mapping[str, tuple[Any, ...]] = {
    "num_key_value_heads": (1, 8),
    "head_dim": (80, 192),
    "sliding_window": (100, 4096),
    "use_sliding_window": (True,),
    "max_window_layers": (3,),
    "max_position_embeddings": (5000,),
    "vocab_size": (32003,),
    "num_hidden_layers": (7,),
    "attention_k_eq_v": (False,),
    "q_lora_rank": (512,),
    "linear_num_value_heads": (16,),
    "mamba_ssm_cache_dtype": ("float32",),
    "mamba_ssm_dtype": ("bfloat16",),
    "sliding_window_pattern": (3,),
}
FACTOR = 4.0
ROPES: Mapping[str, Config] = {
    "linear": {"rope_type": "linear", "factor": FACTOR},
    "dynamic": {"rope_type": "dynamic", "factor": FACTOR},
    "yarn": {
        "rope_type": "yarn",
        "factor": FACTOR,
        "original_max_position_embeddings": 8192,
    },
    "yarn-plain": {"rope_type": "yarn", "factor": FACTOR},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
}
GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
    "input_activations": {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "dynamic": True,
        "strategy": "token",
    },
}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": GROUP},
    "ignore": ["lm_head"],
}
KV_SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}
QUANTIZED: Mapping[str, Config] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-blocks": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "compressed": COMPRESSED,
    "compressed-kv": {**COMPRESSED, "kv_cache_scheme": KV_SCHEME},
}
DTYPES = ("float16", "float32")


def variations(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each variation with its name, the unchanged file first."""
    yield "as-it-is", dict(config)
    text = _text(config)
    for key in KEYS:
        if key in text:
            yield f"no-{key}", _without(config, key)
    for key in NULLS:
        if text.get(key) is not None:
            yield f"null-{key}", _with(config, key, None)
    for key, values in ODD.items():
        for value in values if key in text else ():
            if value != text[key]:
                yield f"{key}={value}", _with(config, key, value)
    if "rope_scaling" not in text and "rope_parameters" not in text:
        for name, rope in ROPES.items():
            yield f"rope-{name}", _with(config, "rope_scaling", dict(rope))
    for dtype in DTYPES:
        yield f"dtype={dtype}", _with(config, "dtype", dtype)
    for name, quantized in QUANTIZED.items():
        yield name, {**config, "quantization_config": quantized}


def _text(config: Config) -> Config:
    """The part that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _changed(config: Config, text: dict[str, Any]) -> dict[str, Any]:
    return {**config, "text_config": text} if "text_config" in config else text


def _without(config: Config, key: str) -> dict[str, Any]:
    return _changed(config, {name: value for name, value in _text(config).items() if name != key})


def _with(config: Config, key: str, value: Any) -> dict[str, Any]:
    """The file with another value; a shorter or longer list of layer types goes with the layers."""
    text = {**_text(config), key: value}
    if key == "num_hidden_layers" and isinstance(text.get("layer_types"), list):
        text["layer_types"] = text["layer_types"][:value]
    return _changed(config, text)
