"""Files config.json: of the families that the project claims, and of models that ship."""

import json
from pathlib import Path
from typing import Any

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec

FAMILIES = Path(__file__).with_name("families.json")
MODELS = {  # by the family whose config.json it has
    "llama-3.1-8b": "llama",
    "llama-3.1-70b": "llama",
    "mistral-7b": "mistral",
    "qwen2.5-7b": "qwen2",
    "qwen3-32b": "qwen3",
    "phi-4": "phi3",
    "gemma-2-27b": "gemma2",
    "qwen3-30b-a3b": "qwen3-moe",
    "mixtral-8x7b": "mixtral",
    "glm-4.7": "glm4-moe",
    "deepseek-v3": "deepseek-v3",
    "gpt-oss-120b": "gpt-oss",
}


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a model that ships, of its family's form."""
    shape = read_model(name)
    config: dict[str, Any] = json.loads(FAMILIES.read_text(encoding="utf-8"))[MODELS[name]]
    config |= {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_len,
    }
    if "head_dim" in config:
        config["head_dim"] = shape.head_size
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2] * (shape.num_layers // 2)
    if MODELS[name] == "gpt-oss":  # all its files have experts of 4 bits
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return config | _experts(config, shape)


def _experts(config: dict[str, Any], shape: ModelSpec) -> dict[str, Any]:
    """The experts of a shape, by the names that a config.json has for them."""
    if shape.experts is None:
        return {}
    size = "moe_intermediate_size"
    counts = ("num_experts", "n_routed_experts", "num_local_experts")
    values: dict[str, Any] = {key: shape.experts.count for key in counts if key in config}
    values["num_experts_per_tok"] = shape.experts.per_token
    values[size if size in config else "intermediate_size"] = shape.experts.size
    return values
