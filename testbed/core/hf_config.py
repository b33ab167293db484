"""Model shapes from Hugging Face's config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.hf_layers import (
    DTYPE_BYTES,
    Fields,
    delta_net,
    experts_of,
    latent_of,
    mamba,
    weight_bits,
    window_of,
)
from testbed.core.layers import spec_of
from testbed.core.specs import ModelSpec

DENSE = ("opt", "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text")
KINDS = (*DENSE, "mixtral", "qwen3_moe", "qwen3_next", "deepseek_v2", "deepseek_v3", "gpt_oss", "nemotron_h")
TEXT = {"gemma3": "gemma3_text"}  # types whose shape is that of their text_config
TIED = ("opt", "gemma2", "gemma3_text")  # types that tie the embedding where the file does not say
# What Transformers assumes where the file of a Gemma 3 does not say.
GEMMA3 = {"vocab_size": 262_208, "max_position_embeddings": 131_072, "head_dim": 256}


def model_of(path: Path, name: str | None = None) -> ModelSpec:
    """The shape that a config.json describes, named `name` or else after the file or its folder.

    A file with the fields of a ModelSpec, such as import-model writes, is read unchanged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file (give the config.json of a model)") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object (give the config.json of a model)")
    if "num_layers" in config and "ffn_matrices" in config:
        return spec_of(ModelSpec, {key: value for key, value in config.items() if not key.startswith("_")}, path)
    named = name or _called(config, path)
    if config.get("model_type") in TEXT and isinstance(config.get("text_config"), dict):
        config = {**GEMMA3, **config["text_config"], "model_type": TEXT[config["model_type"]]}
    if config.get("model_type") not in KINDS:
        known = ", ".join((*KINDS, *TEXT))
        kind = f"model_type {config.get('model_type')!r}"
        raise InputError(f"{path}: {kind} is none of the supported model types ({known}); write the ModelSpec by hand")
    return shape_of(named, config, path)


def _called(config: Mapping[str, Any], path: Path) -> str:
    named = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return (named or (path.parent.name if path.stem == "config" else path.stem) or path.stem).lower()


def shape_of(name: str, config: Mapping[str, Any], path: Path) -> ModelSpec:
    """The shape that the values of a config.json describe; `path` is for messages.

    OPT has two feed-forward matrices, and so has Nemotron-H; all others have gate, up and down, and may have fewer key
    and value heads than query heads. Weights of norms, biases and output gates are not counted.
    """
    fields, kind = Fields(config, path), config["model_type"]
    layers = _layers(fields, kind)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if kind == "opt" and fields.get("word_embed_proj_dim", hidden) != hidden:
        raise InputError(f"{path}: word_embed_proj_dim differs from hidden_size (OPT-350M): not supported")
    dtype = _dtype_bytes(fields)
    bits, expert_bits = weight_bits(fields)
    states, ffn_layers = _states(fields, kind, layers, dtype)
    shape = ModelSpec(
        name, layers, hidden, heads, heads if kind == "opt" else fields.get("num_key_value_heads", heads),
        _head_size(fields, kind, hidden, heads), fields.whole("ffn_dim" if kind == "opt" else "intermediate_size"),
        2 if kind in ("opt", "nemotron_h") else 3,
        fields.whole("vocab_size"), fields.whole("max_position_embeddings"),
        bool(fields.get("tie_word_embeddings", kind in TIED)), dtype, None, bits, ffn_layers,
        None if kind in ("opt", "nemotron_h") else window_of(fields, kind, layers),
        latent_of(fields) if kind.startswith("deepseek") else None, experts_of(fields, kind, expert_bits), states,
    )  # fmt: skip
    fields.check_memory()
    return shape


def _layers(fields: Fields, kind: str) -> int:
    """Layers that mix tokens: all, but in Nemotron-H those that are no feed-forward network."""
    if kind != "nemotron_h":
        return fields.whole("num_hidden_layers")
    pattern = fields.get("hybrid_override_pattern", "")
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("M*-"):
        raise InputError(f"{fields.path}: hybrid_override_pattern={pattern!r}: must consist of M, * and - only")
    return pattern.count("M") + pattern.count("*")


def _states(fields: Fields, kind: str, layers: int, dtype_bytes: int) -> tuple[Any, int | None]:
    if kind == "qwen3_next":
        return delta_net(fields, layers, dtype_bytes), None
    if kind != "nemotron_h":
        return None, None
    pattern = fields.get("hybrid_override_pattern")
    return mamba(fields, pattern.count("M"), dtype_bytes), pattern.count("-")


def _head_size(fields: Fields, kind: str, hidden: int, heads: int) -> int:
    """The size of a query head; of a latent attention, its part without position."""
    if kind.startswith("deepseek"):
        return fields.whole("qk_nope_head_dim")
    size = None if kind == "opt" else fields.get("head_dim", fields.get("attention_head_dim"))
    if size is None and hidden % heads:
        raise InputError(f"{fields.path}: hidden_size {hidden} is no multiple of {heads} heads (set head_dim)")
    return hidden // heads if size is None else int(size)


def _dtype_bytes(fields: Fields) -> int:
    kind = fields.get("torch_dtype") or fields.get("dtype") or "float16"
    if kind not in DTYPE_BYTES:
        raise InputError(f"{fields.path}: weights of {kind!r}: none of {', '.join(DTYPE_BYTES)}: not supported")
    return DTYPE_BYTES[kind]
