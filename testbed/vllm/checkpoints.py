"""Quantised checkpoints that a release of vLLM does not read, or not by the name of a command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.core.errors import DoesNotStart
from testbed.core.hf_config import contents_of, text_of
from testbed.core.hf_weights import QUANTIZATION
from testbed.vllm.releases import Release

GPTQ_BITS, AWQ_BITS = (2, 3, 4, 8), (4, 8)
MARLIN_GPTQ_BITS, MARLIN_AWQ_BITS = (4, 8), (4,)
MARLIN_GROUPS = (-1, 32, 64, 128)
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
# For whose checkpoints vLLM takes any name
OF_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed")
EVERY_NAME = {*OF_MODELOPT, *(name for names in NAMES.values() for name in names)}


def check_checkpoint(path: Path, release: Release, asked: str | None = None) -> None:
    """Raise DoesNotStart for the quantization of a config.json that the release refuses, or that is
    another than the one `asked` for.
    """
    quantised, _ = quantization_in(path)
    if not quantised:
        return
    method = str(quantised.get("quant_method"))
    problem = _problem(quantised, release)
    if asked not in (None, "none") and asked not in NAMES.get(method, (asked,)):
        problem = f"{OPTION} {asked} is another method"
    if problem:
        key = f"{path}: {QUANTIZATION}"
        raise DoesNotStart(key=key, value=method, problem=f"vLLM does not start: {problem}")


def quantization_in(path: Path) -> tuple[Mapping[str, Any], str]:
    """The quantization of a config.json, empty if it has none, and the type of the model."""
    config = contents_of(path)
    text, _ = text_of(config)
    quantised = config.get(QUANTIZATION) or text.get(QUANTIZATION)
    return quantised if isinstance(quantised, Mapping) else {}, text["model_type"]


def _problem(config: Mapping[str, Any], release: Release) -> str:
    """The reason why a release does not read a checkpoint; empty if it does."""
    method = config.get("quant_method")
    bits = config.get("w_bit", config.get("bits"))
    if method == "awq":
        taken = MARLIN_AWQ_BITS if release.has_marlin_alone else AWQ_BITS
        return "" if bits in taken else f"weights of {bits} bits, and not {taken}"
    if method == "gptq":
        return _of_gptq(config, release)
    if method != "compressed-tensors" or release.takes_activation_order:
        return ""
    groups = config.get("config_groups") or {}
    orders = {(group.get("weights") or {}).get("actorder") for group in groups.values()}
    return "groups in the order of activations" if orders & {*ORDERED} else ""


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
