"""Quantised checkpoints that a release of vLLM does not read, or not by the name of a command."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from testbed.core.errors import DoesNotStart
from testbed.core.hf_config import contents_of, text_of
from testbed.core.hf_quantization import QUANTIZATION
from testbed.vllm.releases import Release

GPTQ_BITS, AWQ_BITS = (2, 3, 4, 8), (4, 8)
MARLIN_GPTQ_BITS, MARLIN_AWQ_BITS = (4, 8), (4,)
MARLIN_GROUPS = (-1, 32, 64, 128)
MXFP8_SCALES = "torch.uint8"
ORDERED = ("group", "dynamic")  # values of llm-compressor's actorder
OPTION = "--quantization"
KERNELS = ("marlin", "moe_wna16")
NAMES: Mapping[str, tuple[str, ...]] = {  # of a checkpoint's method, in a command
    "awq": ("awq", "awq_marlin", "auto_awq", *KERNELS),
    "gptq": ("gptq", "gptq_marlin", "auto_gptq", *KERNELS),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("fp8",),
    "mxfp4": ("mxfp4",),
}
UNASKED = (None, "None")  # as vLLM's parser reads the word
# For whose checkpoints vLLM takes any name
OF_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed")
EVERY_NAME = {*OF_MODELOPT, *(name for names in NAMES.values() for name in names)}


class Quantization(NamedTuple):
    """A quantization_config, empty without one. dtype: of all other weights, as the file says it;
    empty: not known.
    """

    values: Mapping[str, Any] = MappingProxyType({})
    dtype: str = ""

    @property
    def group(self) -> int:
        """Weights of AWQ's or GPTQ's with a common scale along the columns; 1: none, or several."""
        method, values = self.values.get("quant_method"), self.values
        if method not in ("awq", "gptq") or values.get("dynamic"):
            return 1
        size = values.get("group_size", 128)
        size = values.get("q_group_size", size) if method == "awq" else size
        return size if type(size) is int and size > 0 else 1

    @property
    def scales_cache(self) -> bool:
        """True if vLLM reads scales of cached values from the checkpoint: none are of fp8_e5m2."""
        method = self.values.get("quant_method")
        return method in ("fp8", "modelopt") or bool(self.values.get("kv_cache_scheme"))

    @property
    def needs_bfloat16(self) -> bool:
        """True if vLLM computes with such weights in bfloat16 alone."""
        algorithm = (self.values.get("quantization") or self.values).get("quant_algo")
        return self.values.get("quant_method") == "mxfp4" or str(algorithm).upper() == "MXFP8"


def check_checkpoint(path: Path, release: Release, asked: str | None = None) -> None:
    """Raise DoesNotStart for the quantization of a config.json that the release refuses, or that is
    another than the one `asked` for.
    """
    quantised = quantization_in(path).values
    if not quantised:
        return
    method = str(quantised.get("quant_method"))
    problem = _problem(quantised, release)
    if asked not in UNASKED and asked not in NAMES.get(method, (asked,)):
        problem = f"{OPTION} {asked} is another method"
    if problem:
        key = f"{path}: {QUANTIZATION}"
        raise DoesNotStart(key=key, value=method, problem=problem)


def quantization_in(path: Path) -> Quantization:
    """The quantization of a config.json."""
    config = contents_of(path)
    text, _ = text_of(config)
    quantised = text.get(QUANTIZATION)
    values = quantised if isinstance(quantised, Mapping) else {}
    dtypes = (each.get(key) for each in (text, config) for key in ("torch_dtype", "dtype"))
    dtype = next((str(name) for name in dtypes if name), "")
    return Quantization(values, dtype)


def _problem(config: Mapping[str, Any], release: Release) -> str:
    """The reason why a release does not read a checkpoint; empty if it does."""
    method = config.get("quant_method")
    bits = config.get("w_bit", config.get("bits"))
    if method == "awq":
        taken = MARLIN_AWQ_BITS if release.has_marlin_alone else AWQ_BITS
        return "" if bits in taken else f"weights of {bits} bits, and not {taken}"
    if method == "gptq":
        return _of_gptq(config, release)
    return _of_compressed(config, release) if method == "compressed-tensors" else ""


def _of_compressed(config: Mapping[str, Any], release: Release) -> str:
    groups = (config.get("config_groups") or {}).values()
    for weights in (group.get("weights") or {} for group in groups):
        if weights.get("actorder") in ORDERED and not release.takes_activation_order:
            return "groups in the order of activations"
        if _is_mxfp8(weights) and weights.get("scale_dtype") != MXFP8_SCALES:
            return f"MXFP8 without scale_dtype {MXFP8_SCALES}"
    return ""


def _is_mxfp8(weights: Mapping[str, Any]) -> bool:
    found = tuple(weights.get(key) for key in ("num_bits", "type", "group_size"))
    return found == (8, "float", 32)


def _of_gptq(config: Mapping[str, Any], release: Release) -> str:
    bits, group = config.get("bits"), config.get("group_size")
    is_ordered = config.get("desc_act") and group != -1
    if is_ordered and not release.takes_activation_order:
        return "groups in the order of activations (desc_act)"
    if not release.has_marlin_alone:
        return "" if bits in GPTQ_BITS else f"weights of {bits} bits, and not {GPTQ_BITS}"
    if bits not in MARLIN_GPTQ_BITS or config.get("sym") is False:
        return f"weights of {bits} bits, and not {MARLIN_GPTQ_BITS}, symmetric"
    return "" if group in MARLIN_GROUPS else f"groups of {group}, and not {MARLIN_GROUPS}"
