"""What a decoder-only transformer computes: its shape, and the few choices in which the families differ."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec

FAMILIES = ("opt", "llama", "qwen2")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A shape and its family: OPT has learned positions, LayerNorm, ReLU and biases; the others RoPE, RMSNorm, SwiGLU.

    qkv_bias is Qwen2's. rope_theta is the base of the angles, rope_scaling LLaMA 3.1's stretching of the slow ones.
    """

    spec: ModelSpec
    family: str
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, float] | None = None

    @property
    def is_opt(self) -> bool:
        """Whether positions are learned, norms have a shift, and every product a bias."""
        return self.family == "opt"

    @property
    def q_width(self) -> int:
        """Values of a token's queries."""
        return self.spec.num_heads * self.spec.head_size

    @property
    def kv_width(self) -> int:
        """Values of a token's keys, or of its values."""
        return self.spec.num_kv_heads * self.spec.head_size


def of_spec(spec: ModelSpec) -> Architecture:
    """The family of a shape that ships, by what its file says."""
    if spec.ffn_matrices == 2:
        return Architecture(spec, "opt")
    if spec.name.startswith("qwen2"):
        return Architecture(spec, "qwen2", 1e-6, True, 1e6)
    return Architecture(spec, "llama", rope_theta=5e5 if "llama-3" in spec.name else 1e4)


def of_folder(folder: Path) -> Architecture:
    """The architecture that a Hugging Face folder's config.json describes."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing: give a Hugging Face model folder") from None
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"{path}: model_type is {family!r}; the engine runs {', '.join(FAMILIES)}")
    return _opt(config, folder.name, path) if family == "opt" else _gated(config, folder.name, family, path)


def _opt(config: dict[str, Any], name: str, path: Path) -> Architecture:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    wanted = {"do_layer_norm_before": True, "word_embed_proj_dim": hidden, "activation_function": "relu"}
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise InputError(f"{path}: {key} is {config[key]!r}; the engine runs OPT with {value!r} only")
    spec = ModelSpec(
        name, config["num_hidden_layers"], hidden, heads, heads, hidden // heads, config["ffn_dim"], 2,
        config["vocab_size"], config["max_position_embeddings"], config.get("tie_word_embeddings", True),
    )  # fmt: skip
    return Architecture(spec, "opt")


def _gated(config: dict[str, Any], name: str, family: str, path: Path) -> Architecture:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    spec = ModelSpec(
        name, config["num_hidden_layers"], hidden, heads, config.get("num_key_value_heads") or heads,
        config.get("head_dim") or hidden // heads, config["intermediate_size"], 3, config["vocab_size"],
        config["max_position_embeddings"], config.get("tie_word_embeddings", False),
    )  # fmt: skip
    if config.get("hidden_act", "silu") != "silu" or config.get("use_sliding_window") or config.get("mlp_bias"):
        raise InputError(f"{path}: the engine runs SwiGLU without biases and with full attention only")
    rope = config.get("rope_parameters") or {**(config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InputError(f"{path}: RoPE of type {kind!r}; the engine knows default and llama3")
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    bias = family == "qwen2" or bool(config.get("attention_bias"))
    eps = config.get("rms_norm_eps", 1e-6)
    return Architecture(spec, family, eps, bias, float(theta), rope if kind == "llama3" else None)
