"""Groups of weights with a common scale, of which vLLM takes whole ones alone on each GPU.

Sources: create_weights of vLLM's quantization/auto_awq.py, moe_wna16.py, modelopt.py and
compressed_tensors/, and can_implement of kernels/linear/mixed_precision/.
"""

from collections.abc import Mapping
from math import gcd
from pathlib import Path
from typing import Any

from testbed.core.errors import DoesNotStart
from testbed.core.hf_linears import Linear
from testbed.core.hf_schemes import scheme_of
from testbed.core.scale_blocks import cut_share
from testbed.core.specs import ModelSpec
from testbed.vllm.checkpoints import quantization_in
from testbed.vllm.limits import Limits

LEAST = 32  # weights of a group into which moe_wna16 divides those of experts
MACHETE = 64  # columns of which Hopper's kernel takes any multiple
# Columns of dense layers and of experts
OF_MODELOPT = {"NVFP4": (16, 1), "W4A16_NVFP4": (16, 1), "MXFP8": (32, 32), "FP8_PB_WO": (128, 1)}


def check_scale_groups(path: Path, model: ModelSpec, limits: Limits) -> None:
    """Raise DoesNotStart if the quantization of a config.json has groups that a GPU would cut."""
    config, kind = quantization_in(path)
    bits_of = scheme_of(config)
    if bits_of is None:
        return

    def group_of(linear: Linear, width: int) -> int:
        return _group(config, linear, width) if bits_of(linear) is not None else 1

    num_gpus = limits.num_gpus
    if problem := cut_share(model, num_gpus, limits.num_expert_parts, group_of, kind):
        raise DoesNotStart(
            key="vllm serve: --tensor-parallel-size",
            value=num_gpus,
            problem=f"vLLM does not start: {problem}",
        )


def _group(config: Mapping[str, Any], linear: Linear, width: int) -> int:
    """Columns of which a GPU's share of an input must be a multiple; 1: of none."""
    method, group = config.get("quant_method"), config.get("group_size", 128)
    if method == "modelopt":
        algorithm = (config.get("quantization") or config).get("quant_algo")
        return OF_MODELOPT.get(str(algorithm).upper(), (1, 1))[linear.is_routed]
    if method == "awq":
        group = config.get("q_group_size", group)
    elif method == "compressed-tensors":
        group = _compressed_group(list(config["config_groups"].values()))
    elif method != "gptq" or config.get("dynamic"):
        group = None
    if type(group) is not int or group < 1:
        return 1
    if linear.is_routed and method != "compressed-tensors":
        return gcd(group, LEAST)
    # In float16, which either may be, Exllama takes any share of whole groups
    of_gptq = 1 if width % group == 0 else gcd(group, MACHETE)
    return of_gptq if method == "gptq" else group


def _compressed_group(entries: list[Mapping[str, Any]]) -> Any:
    """Weights of a group of integers beside activations of 16 bits; None: groups differ."""
    weights = entries[0].get("weights") or {}
    is_packed = weights.get("type") == "int" and not entries[0].get("input_activations")
    return weights.get("group_size") if len(entries) == 1 and is_packed else None
