"""Bits of a weight by a Hugging Face config.json, and the products of quantized weights."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.core.errors import InputError
from testbed.core.hf_fields import Fields

FP8_BLOCK_BITS = 8 + 32 / 128**2  # a weight, and its share of the scale of a block of 128 x 128
# Names of linear layers of a mixture of experts: those that all tokens go through, and another.
LINEAR_LAYERS = (
    "model.layers.0.self_attn.o_proj",
    "model.layers.0.mlp.gate_proj",
    "model.layers.1.mlp.shared_experts.gate_proj",
)
ROUTED_EXPERT = "model.layers.1.mlp.experts.0.gate_proj"
MXFP4_BITS = 4 + 8 / 32  # a weight, and its share of the scale of 32 of them


def weight_bits(fields: Fields) -> tuple[float | None, float | None]:
    """Bits of a weight of the layers, and of the experts if these are quantized apart; None for
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
        if not isinstance(config.get("ignore") or [], list):
            raise InputError(
                key=f"{fields.path}: quantization_config.ignore",
                value=repr(config["ignore"]),
                problem="must be a list of names",
            )
        return (None, bits) if _ignores_all_but_experts(config) else (bits, None)
    if method in ("gptq", "awq") and type(bits := config.get("bits")) is int and bits > 0:
        group = config.get("group_size", 128)
        return (bits + (16 + bits) / group if type(group) is int and group > 0 else bits), None
    raise InputError(
        key=f"{fields.path}: quantization_config.quant_method",
        value=repr(method),
        problem="is none of fp8, mxfp4, gptq, awq, or compressed-tensors of one group of weights",
        remedy="give the unquantized config.json, and weight_bits",
    )


def _ignores_all_but_experts(config: Mapping[str, Any]) -> bool:
    """True if a list of llm-compressor's names leaves routed experts alone to be quantized
    (Kimi-K2).
    """
    names = [str(name) for name in config.get("ignore") or []]
    try:
        leaves_layers = all(_is_ignored(layer, names) for layer in LINEAR_LAYERS)
        return leaves_layers and not _is_ignored(ROUTED_EXPERT, names)
    except re.error:
        return False


def _is_ignored(layer: str, names: Sequence[str]) -> bool:
    """True if a name is the layer's, or a pattern of its beginning, as in vLLM; the name of a
    module above it, or the end of its own, is none.
    """
    return any(
        bool(re.match(name[3:], layer)) if name.startswith("re:") else name == layer
        for name in names
    )


def fp8_products(fields: Fields) -> bool | None:
    """True if the layers multiply weights and activations in FP8, as vLLM does with checkpoints of
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


def kv_bytes(fields: Fields) -> int | None:
    """Bytes of a cached value if the checkpoint says them (llm-compressor's kv_cache_scheme);
    None: those of the model. Raises InputError for a scheme of other values than floats of 8 bits.
    """
    config = fields.get("quantization_config", {})
    scheme = config.get("kv_cache_scheme") if isinstance(config, Mapping) else None
    if not scheme or config.get("quant_method") != "compressed-tensors":
        return None
    if (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        raise InputError(
            key=f"{fields.path}: quantization_config.kv_cache_scheme",
            value=repr(scheme),
            problem="must be floats of 8 bits",
        )
    return 1


def _compressed_bits(config: Mapping[str, Any]) -> float | None:
    """Bits of a weight of llm-compressor's format, with 16 for the scale of a group; None if
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
