"""Model shapes from Hugging Face's config.json: OPT, LLaMA, Qwen2, Qwen3 and Mistral, dense."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec

GATED = ("llama", "qwen2", "qwen3", "mistral")
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def model_of(path: Path, name: str | None = None) -> ModelSpec:
    """The shape that a config.json describes; it is called `name`, else what the file or its folder is called.

    A file with the values of a ModelSpec, such as import-model writes, is read as it is.
    """
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (yaml.YAMLError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a JSON file; give the config.json of a model") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object; give the config.json of a model")
    if "num_layers" in config and "ffn_matrices" in config:
        return ModelSpec(**{key: value for key, value in config.items() if not key.startswith("_")})
    kind = config.get("model_type")
    called = name or _called(config, path)
    if kind == "opt":
        return _opt(called, config, path)
    if kind in GATED:
        return _gated(called, config, path)
    known = ", ".join(("opt", *GATED))
    raise InputError(f"{path}: model_type {kind!r} is not one whose shape is known here ({known}); write it by hand")


def _called(config: Mapping[str, Any], path: Path) -> str:
    named = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return (named or (path.parent.name if path.stem == "config" else path.stem) or path.stem).lower()


def _opt(name: str, config: Mapping[str, Any], path: Path) -> ModelSpec:
    """OPT: learned positions, two matrices in the feed-forward, tied embedding unless it says otherwise."""
    hidden, heads = _whole(config, path, "hidden_size"), _whole(config, path, "num_attention_heads")
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise InputError(
            f"{path}: word_embed_proj_dim differs from hidden_size (OPT-350M); that shape is not supported"
        )
    return ModelSpec(
        name, _whole(config, path, "num_hidden_layers"), hidden, heads, heads, hidden // heads,
        _whole(config, path, "ffn_dim"), 2, _whole(config, path, "vocab_size"),
        _whole(config, path, "max_position_embeddings"), bool(config.get("tie_word_embeddings", True)),
        _dtype_bytes(config, path),
    )  # fmt: skip


def _gated(name: str, config: Mapping[str, Any], path: Path) -> ModelSpec:
    """LLaMA's shape: rotary positions, gate, up and down; keys and values may have fewer heads."""
    hidden, heads = _whole(config, path, "hidden_size"), _whole(config, path, "num_attention_heads")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    return ModelSpec(
        name, _whole(config, path, "num_hidden_layers"), hidden, heads, kv_heads, head_size,
        _whole(config, path, "intermediate_size"), 3, _whole(config, path, "vocab_size"),
        _whole(config, path, "max_position_embeddings"), bool(config.get("tie_word_embeddings", False)),
        _dtype_bytes(config, path),
    )  # fmt: skip


def _whole(config: Mapping[str, Any], path: Path, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise InputError(f"{path}: {key} is {value!r}; it must be a whole number of at least 1")
    return value


def _dtype_bytes(config: Mapping[str, Any], path: Path) -> int:
    kind = config.get("torch_dtype") or config.get("dtype") or "float16"
    if config.get("quantization_config") or kind not in DTYPE_BYTES:
        raise InputError(f"{path}: weights of {kind!r}, quantized or not of {', '.join(DTYPE_BYTES)}: not supported")
    return DTYPE_BYTES[kind]
