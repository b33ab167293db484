"""Types of a checkpoint's weights and cached values, as a Hugging Face config.json says them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from testbed.core.errors import InputError
from testbed.core.hf_fields import Fields, types
from testbed.core.hf_linears import OTHERWISE_NAMED, WHOLE_HEAD, Linear, linears_of
from testbed.core.hf_quantization import QUANTIZATION, quantization_of
from testbed.core.hf_schemes import HEAD, Bits, quantises_head, scheme_of
from testbed.core.specs import FP8_BITS, ModelSpec

# Ends of names of projections to latent vectors and to K and V, of which GPUs have copies
COPIED = ("qkv_a_proj", "kv_a_proj_with_mqa", "qkv_proj")
# Beginnings of names of encoders that vLLM quantises by files of a method, and types that differ
QUANTISE_ENCODERS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("vision_tower", "visual"),
    "compressed-tensors": ("vision_tower", "visual"),
    "modelopt": ("visual",),
}
UNLESS = (("kimi_k25", "compressed-tensors"), ("gemma4", "fp8"))
LAYER = re.compile(r"^model\.layers\.\d+\.")
NAMES: Mapping[str, tuple[str, ...]] = {  # of layers, which a method reads
    "fp8": ("ignored_layers", "modules_to_not_convert"),
    "awq": ("modules_to_not_convert",),
    "gptq": ("dynamic", "modules_in_block_to_quantize"),
    "compressed-tensors": ("ignore", "config_groups"),
    "modelopt": ("ignore", "exclude_modules", "quantized_layers"),
}


def with_weights(shape: ModelSpec, fields: Fields, kind: str) -> ModelSpec:
    """The shape with the bits that its checkpoint's weights have: those of routed experts, and the
    mean of all other linear layers if some of them are left in the model's type.
    """
    config = quantization_of(fields)
    if not config:
        return shape
    bits_of = _scheme(fields, config, kind)
    found = [(each, _bits_of(fields, bits_of, each)) for each in linears_of(shape, kind)]
    dense = [(each.num_params, bits) for each, bits in found if not each.is_routed]
    routed = [(each.num_params, bits) for each, bits in found if each.is_routed]
    bits, usual = _mean(dense, shape.dense_params, shape), 8 * shape.dtype_bytes
    of_experts = _mean(routed, sum(count for count, _ in routed), shape)
    if shape.experts and of_experts != bits:
        shape = replace(shape, experts=replace(shape.experts, bits=of_experts or usual))
    by_place = {(LAYER.sub("", each.name), bits) for each, bits in found}
    if len(by_place) > len({place for place, _ in by_place}):
        shape = replace(shape, has_uneven_bits=True)
    copied = [(each.num_params, bits) for each, bits in found if each.name.endswith(COPIED)]
    of_copied = _mean(copied, sum(count for count, _ in copied), shape)
    if copied and of_copied != bits:
        shape = replace(shape, copied_bits=of_copied or usual)
    has_bits = quantises_head(config) and kind not in WHOLE_HEAD
    if has_bits and not shape.tied_embedding:
        shape = replace(shape, head_bits=_bits_of(fields, bits_of, HEAD))
    elif has_bits and config.get("quant_method") != "modelopt":
        raise fields.refusal(QUANTIZATION, "a quantised output projection beside a tied embedding")
    kinds = {bits for _, bits in found if bits is not None}
    is_of_fp8 = bool(kinds) and all(8 <= each < FP8_BITS for each in kinds)
    multiplies = fp8_products(fields) if is_of_fp8 else None
    return replace(shape, weight_bits=bits, fp8_products=multiplies)


def _mean(parts: list[tuple[int, float | None]], num_params: int, shape: ModelSpec) -> float | None:
    """The bits of a weight: those of all parts if they are alike, else the mean over num_params, of
    which those in no part have the model's type; None for that type.
    """
    kinds = {bits for _, bits in parts}
    if len(kinds) < 2:
        return next(iter(kinds), None)
    usual = 8 * shape.dtype_bytes
    saved = sum(count * (usual - (bits or usual)) for count, bits in parts)
    return usual - saved / num_params


def _bits_of(fields: Fields, bits_of: Bits, linear: Linear) -> float | None:
    try:
        return bits_of(linear)
    except ValueError as error:
        raise fields.does_not_start(QUANTIZATION, str(error)) from None


def check_encoder(fields: Fields, kind: str) -> None:
    """Raise InputError for a checkpoint that does not leave out the encoder of images of a file of
    this type: its weights are counted in the model's type.

    Of GPTQ and AWQ vLLM reads from the checkpoint's files which layers are quantised.
    """
    config, name = quantization_of(fields), types()["encoders"].get(kind, "")
    bits_of, method = scheme_of(config), config.get("quant_method")
    kinds = QUANTISE_ENCODERS.get(str(method), ())
    if bits_of is None or not name.startswith(kinds) or (kind, method) in UNLESS:
        return
    parts = tuple(name.replace("qkv_proj", f"{of}_proj") for of in "qkv")
    if _bits_of(fields, bits_of, Linear(name, parts, 0)) is not None:
        raise fields.refusal(
            QUANTIZATION,
            "vLLM quantises the encoder of images too, which is not modelled",
            "name its layers among those that are left out, if they are",
        )


def _scheme(fields: Fields, config: Mapping[str, Any], kind: str) -> Bits:
    """The bits by layer. Raises InputError for a method that is not read, and for an output
    projection or names of layers that are not.
    """
    bits_of = scheme_of(config)
    if bits_of is None:
        raise InputError(
            key=f"{fields.path}: {QUANTIZATION}.quant_method",
            value=repr(config.get("quant_method")),
            problem="is none of fp8, mxfp4, gptq, awq, modelopt, compressed-tensors with bits",
            remedy="give the unquantized config.json, and weight_bits",
        )
    if kind in OTHERWISE_NAMED and any(map(_is_of_layers, _names_in(config))):
        raise fields.refusal(QUANTIZATION, f"names of layers are not read for model_type {kind!r}")
    return bits_of


def _names_in(config: Mapping[str, Any]) -> Iterator[str]:
    """The names of layers that a method reads; mxfp4 reads none."""
    method = str(config.get("quant_method"))
    values = (config.get("quantization") if method == "modelopt" else None) or config
    for key in NAMES.get(method, ()):
        if key == "config_groups":
            for group in (values.get(key) or {}).values():
                yield from group.get("targets") or []
        else:
            yield from map(str, values.get(key) or [])


def _is_of_layers(name: str) -> bool:
    """True for the name of a layer, or a pattern of it, but the output projection's."""
    return name != "Linear" and "lm_head" not in name


def fp8_products(fields: Fields) -> bool | None:
    """True if the layers multiply weights and activations in FP8, as vLLM does with checkpoints of
    fp8 and, of llm-compressor's and ModelOpt's, those whose inputs are floats of 8 bits; None: they
    do not.
    """
    config = quantization_of(fields)
    method = config.get("quant_method")
    if method in ("fp8", "modelopt"):
        return True
    groups = config["config_groups"] if method == "compressed-tensors" else {}
    kinds = {
        (operand.get("type"), operand.get("num_bits"))
        for group in groups.values()
        for operand in (group.get("weights") or {}, group.get("input_activations") or {})
    }
    return True if kinds == {("float", 8)} else None


def kv_bytes(fields: Fields, *, of_latents: bool = False) -> int | None:
    """Bytes of a cached value if the checkpoint says them (llm-compressor's kv_cache_scheme, which
    latents do not read, or ModelOpt's algorithm); None: those of the model. Raises InputError for
    other values than floats of 8 bits.
    """
    config = quantization_of(fields)
    method = config.get("quant_method")
    if method != "modelopt" and (method != "compressed-tensors" or of_latents):
        return None
    values = (config.get("quantization") if method == "modelopt" else None) or config
    scheme = values.get("kv_cache_scheme") or values.get("kv_cache_quant_algo")
    if not scheme:
        return None
    is_scheme = isinstance(scheme, Mapping)
    kind = (scheme.get("type"), scheme.get("num_bits")) if is_scheme else scheme
    if kind not in (("float", 8), "FP8"):
        raise InputError(
            key=f"{fields.path}: {QUANTIZATION}.kv_cache_scheme",
            value=repr(scheme),
            problem="must be floats of 8 bits",
        )
    return 1
