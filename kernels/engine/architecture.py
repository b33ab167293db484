"""The architecture of a decoder-only transformer: its shape, and the options in which the families
differ.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.shapes import check_plain
from testbed.core.specs import ModelSpec

FAMILIES = ("opt", "llama", "mistral", "qwen2")
OPT_ONLY = {
    "do_layer_norm_before": True,
    "activation_function": "relu",
}  # of config.json, if it has the key
GATED_ONLY = {"hidden_act": "silu", "mlp_bias": False}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A shape and its family: OPT has learned positions, LayerNorm, ReLU and biases; the others
    RoPE, RMSNorm, SwiGLU.

    qkv_bias is true for Qwen2. rope_theta is the base of the angles; rope_scaling is LLaMA 3.1's
    scaling of low frequencies. windowed: the layers with the spec's sliding window, None for evenly
    spread ones of the spec's number.
    """

    spec: ModelSpec
    family: str
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, float] | None = None
    windowed: tuple[bool, ...] | None = None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer, None for full attention; of evenly spread layers the first is
        full.
        """
        layers, window = self.spec.num_layers, self.spec.window
        if window is None:
            return (None,) * layers
        full = layers - window.num_layers
        spread = tuple(i * full % layers >= full for i in range(layers))
        return tuple(
            window.size if is_windowed else None for is_windowed in self.windowed or spread
        )

    @property
    def is_opt(self) -> bool:
        """True if positions are learned, norms have a shift, and every matrix product has a
        bias.
        """
        return self.family == "opt"

    @property
    def q_width(self) -> int:
        """Number of values of a token's queries."""
        return self.spec.num_heads * self.spec.head_size

    @property
    def kv_width(self) -> int:
        """Number of values of a token's K, and of its V."""
        return self.spec.num_kv_heads * self.spec.head_size


def of_spec(spec: ModelSpec) -> Architecture:
    """The architecture of a shipped model, by the fields of its file."""
    check_served(spec)
    if spec.name.startswith(("qwen3", "gemma")):
        raise InputError(
            key="model",
            value=spec.name,
            problem="its network is not supported by the engine",
            remedy="run it without engine=",
        )
    if spec.ffn_matrices == 2:
        return Architecture(spec, "opt")
    if spec.name.startswith("qwen2"):
        return Architecture(spec=spec, family="qwen2", norm_eps=1e-6, qkv_bias=True, rope_theta=1e6)
    return Architecture(spec, "llama", rope_theta=5e5 if "llama-3" in spec.name else 1e4)


def check_served(spec: ModelSpec) -> None:
    """Raise InputError for a shape that the engine does not support; it has windows, and caches of
    e4m3.
    """
    check_plain(replace(spec, kv_dtype_bytes=None, window=None), "the engine")
    if spec.kv_dtype_bytes not in (None, 1, spec.dtype_bytes):
        raise InputError(
            key="model.kv_dtype_bytes",
            value=spec.kv_dtype_bytes,
            problem="the engine's cache has the type of the weights or e4m3",
            remedy=f"set 1, or {spec.dtype_bytes}",
        )


def of_folder(folder: Path) -> Architecture:
    """The architecture that a Hugging Face folder's config.json describes."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            key=path, problem="is missing", remedy="give a Hugging Face model folder"
        ) from None
    family = _family(config, path)
    spec = model_of(path, folder.name)
    check_served(spec)
    if family == "opt":
        return Architecture(spec, "opt")
    rope = config.get("rope_parameters") or {**(config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InputError(
            key=path, problem=f"RoPE of type {kind!r}: the engine supports default and llama3 only"
        )
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    bias = family == "qwen2" or bool(config.get("attention_bias"))
    eps = config.get("rms_norm_eps", 1e-6)
    return Architecture(
        spec=spec,
        family=family,
        norm_eps=eps,
        qkv_bias=bias,
        rope_theta=float(theta),
        rope_scaling=rope if kind == "llama3" else None,
        windowed=_windowed_layers(spec, config),
    )


def _family(config: Mapping[str, Any], path: Path) -> str:
    """The family of a config.json; raises InputError for one, or a value, that the engine does not
    support.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(
            key=f"{path}: model_type",
            value=repr(family),
            problem="is not supported",
            remedy=f"choose one of {', '.join(FAMILIES)}",
        )
    for key, value in (OPT_ONLY if family == "opt" else GATED_ONLY).items():
        if config.get(key) not in (None, value):
            raise InputError(
                key=f"{path}: {key}",
                value=repr(config[key]),
                problem=f"the engine supports {value!r} only",
            )
    return str(family)


def _windowed_layers(spec: ModelSpec, config: Mapping[str, Any]) -> tuple[bool, ...] | None:
    """The layers that have the window: those of layer_types, else all; None without a window."""
    if not spec.window:
        return None
    if "layer_types" in config:
        return tuple(kind == "sliding_attention" for kind in config["layer_types"])
    return (True,) * spec.num_layers
