"""Bits of a quantised checkpoint's weights by the name of a linear layer, as vLLM's classes decide.

Sources: vLLM's quantization/fp8.py, auto_awq.py, auto_gptq.py, modelopt.py, mxfp4.py and
compressed_tensors/; is_layer_skipped, get_dynamic_override and find_matched_target.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from math import prod
from typing import Any, TypeAlias

from testbed.core.hf_linears import Linear
from testbed.core.hf_quantization import PATTERN, pair_of, rule_pattern

HEAD = Linear("lm_head", ("lm_head",), 0)
Bits: TypeAlias = Callable[[Linear], float | None]
Config: TypeAlias = Mapping[str, Any]

FP8_BLOCK_BITS = 8 + 32 / 128**2  # a weight, and its share of the scale of a block of 128 x 128
MXFP4_BITS = 4 + 8 / 32  # a weight, and its share of the scale of 32 of them
NVFP4_BITS = 4 + 8 / 16
MODELOPT = {
    "FP8": 8,
    "FP8_PER_CHANNEL_PER_TOKEN": 8,
    "FP8_PB_WO": FP8_BLOCK_BITS,
    "NVFP4": NVFP4_BITS,
    "W4A16_NVFP4": NVFP4_BITS,
    "MXFP8": 8 + 8 / 32,
}
MIXED = "MIXED_PRECISION"  # ModelOpt's, with an algorithm for each layer
OF_STATES = ".in_proj_qkvz"  # stands for all matrices of a layer with a state
# The part of a name before the layers, in checkpoints and in vLLM, and before those of an encoder
BEFORE_LAYERS = re.compile(r"^(model\.language_model|language_model\.model|backbone)\.")
BEFORE_ENCODER = re.compile(r"^model\.(?=(visual|vision_tower)\b)")


def scheme_of(config: Config) -> Bits | None:
    """Bits of a weight with its share of scales, by its layer; None in their place: of the model's
    type. None for a checkpoint whose method is not known.
    """
    read = METHODS.get(str(config.get("quant_method")))
    return None if read is None else read(config)


def quantises_head(config: Config) -> bool:
    """True if the output projection is quantised too, which compressed-tensors has to name."""
    if config.get("quant_method") in ("gptq", "awq"):
        return bool(config.get("lm_head"))
    if config.get("quant_method") == "compressed-tensors":
        groups = (config.get("config_groups") or {}).values()
        is_named = any(_matches(HEAD.name, _listed(group, "targets")) for group in groups)
        return is_named and not _matches(HEAD.name, _listed(config, "ignore"))
    if config.get("quant_method") != "modelopt":
        return False
    values = config.get("quantization") or config
    if values.get("quant_algo") == MIXED:
        return any("lm_head" in name for name in values.get("quantized_layers") or ())
    left = _listed(values, "ignore", "exclude_modules")
    return not any("lm_head" in name for name in left)


def _listed(config: Config, *keys: str) -> list[str]:
    """The names under the first key that has any, as those of a model of text alone."""
    lists = (config.get(key) for key in keys)
    names: list[str] = next((value for value in lists if value), [])
    return [BEFORE_LAYERS.sub("model.", BEFORE_ENCODER.sub("", name)) for name in names]


def _is_left(linear: Linear, matches: Callable[[str], bool]) -> bool:
    """True if a list has a layer's name, or that of each matrix in it. Raises ValueError if it has
    some of them, with which vLLM does not start.
    """
    found = {matches(name) for name in linear.parts}
    if not matches(linear.name) and len(found) > 1:
        raise ValueError(f"some of {', '.join(linear.parts)} are quantised, and not all")
    return matches(linear.name) or found == {True}


def _fp8(config: Config) -> Bits:
    names = _listed(config, "ignored_layers", "modules_to_not_convert")
    of_experts = [name for name in names if "experts" in name]
    block = config.get("weight_block_size")
    bits = 8 + 32 / prod(block) if block else 8

    def bits_of(linear: Linear) -> float | None:
        if linear.is_routed:
            return None if any(linear.name in name for name in of_experts) else bits
        return None if _is_left(linear, names.__contains__) else bits

    return bits_of


def _mxfp4(config: Config) -> Bits:
    return lambda linear: MXFP4_BITS if linear.is_routed else None


def _awq(config: Config) -> Bits | None:
    bits, parts = config.get("w_bit", config.get("bits")), _listed(config, "modules_to_not_convert")
    if bits is None:
        return None
    packed = _packed(bits, config.get("q_group_size", config.get("group_size", 128)))

    def bits_of(linear: Linear) -> float | None:
        return None if _is_left(linear, lambda name: any(p in name for p in parts)) else packed

    return bits_of


def _packed(bits: int, group: int | None) -> float:
    """Bits with those of the scale and the zero of a group."""
    return bits + (16 + bits) / group if group and group > 0 else bits


def _gptq(config: Config) -> Bits | None:
    bits, group = config.get("bits"), config.get("group_size", 128)
    rules, parts = config.get("dynamic") or {}, config.get("modules_in_block_to_quantize") or []
    if bits is None:
        return None
    quantised = _flat(parts)

    def bits_of(linear: Linear) -> float | None:
        is_listed = _is_left(linear, lambda name: any(part in name for part in quantised))
        if quantised and not linear.is_routed and not is_listed:
            return None
        for pattern, changes in rules.items():
            if re.match(rule_pattern(pattern), linear.name):
                is_out = pattern.startswith("-:")
                changed = changes.get("bits", bits), changes.get("group_size", group)
                return None if is_out else _packed(*changed)
        return _packed(bits, group)

    return bits_of


def _flat(values: Sequence[Any]) -> list[str]:
    """The texts of a list of texts or of lists of them."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return [str(value) for values in lists for value in values]


def _compressed(config: Config) -> Bits | None:
    """Layers by the first group whose target is their name, a pattern of it, or their class."""
    groups, ignored = config.get("config_groups") or {}, _listed(config, "ignore")
    targets = [(_listed(g, "targets") or ["Linear"], _group_bits(g)) for g in groups.values()]
    targets = [(names, bits) for names, bits in targets if not _is_attention(names)]
    if not targets or any(bits is None for _, bits in targets):
        return None

    def bits_of(linear: Linear) -> float | None:
        if _is_named(linear, ignored):
            return None
        by_name = (bits for names, bits in targets if _is_named(linear, names))
        by_class = (bits for names, bits in targets if "Linear" in names)
        return next(by_name, None) or next(by_class, None)

    return bits_of


def _is_named(linear: Linear, patterns: Sequence[str]) -> bool:
    """True if patterns match a layer, or of experts each matrix of the first one."""
    named = linear._replace(name="", parts=linear.of_expert) if linear.is_routed else linear
    return _is_left(named, lambda name: _matches(name, patterns))


def _is_attention(names: Sequence[str]) -> bool:
    """True for a group of the KV cache, which vLLM leaves to kv_cache_scheme."""
    return len(names) == 1 and names[0].endswith("Attention")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """True if a pattern is the name, or one of its beginning; the name of a module above it, or the
    end of its own, is none.
    """
    return any(
        bool(re.match(pattern[3:], name)) if pattern.startswith(PATTERN) else pattern == name
        for pattern in patterns
    )


def _group_bits(group: Config) -> float | None:
    """Bits of a group's weights; None if it does not say them."""
    weights = group.get("weights") or {}
    bits: int | None = weights.get("num_bits")
    size: int | None = weights.get("group_size")
    block = pair_of(weights.get("block_structure"))
    if bits is None:
        return None
    if block and weights.get("strategy") == "block":
        return float(bits + 32 / prod(block))
    if not size or size < 1:
        return float(bits)
    zero = 0 if weights.get("symmetric", True) else bits
    return bits + (8 if weights.get("type") == "float" else 16 + zero) / size


def _modelopt(config: Config) -> Bits | None:
    """ModelOpt's, of config.json and of hf_quant_config.json, whose names may have wildcards."""
    values = config.get("quantization") or config
    if values.get("quant_algo") == MIXED:
        return _mixed(values.get("quantized_layers") or {})
    bits = MODELOPT.get(str(values.get("quant_algo")).upper())
    left = _listed(values, "ignore", "exclude_modules")
    if bits is None:
        return None

    def bits_of(linear: Linear) -> float | None:
        is_left = any(part in linear.name or fnmatch(linear.name, part) for part in left)
        return None if is_left or _is_left(linear, left.__contains__) else bits

    return bits_of


def _mixed(layers: Mapping[str, Config]) -> Bits | None:
    """Layers by the algorithm that is listed for them, or for a matrix or module in them."""
    known: dict[str, set[float | None]] = {}
    for name, entry in layers.items():
        parts = BEFORE_LAYERS.sub("model.", name).split(".")
        for length in range(1, len(parts) + 1):
            found = known.setdefault(".".join(parts[:length]), set())
            found.add(MODELOPT.get(str(entry.get("quant_algo")).upper()))
    if None in known.get("model", {None}):
        return None

    def bits_of(linear: Linear) -> float | None:
        names = {linear.name, *linear.parts}
        if linear.name.endswith(OF_STATES):
            names = {linear.name.removesuffix(OF_STATES)}
        kinds = set().union(*(known.get(name, ()) for name in names))
        if len(kinds) > 1:
            raise ValueError(f"parts of {linear.name} have several types")
        return next(iter(kinds), None)

    return bits_of


METHODS: Mapping[str, Callable[[Config], Bits | None]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
