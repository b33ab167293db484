"""Blocks and groups of weights with a common scale, which no share of a GPU may cut in vLLM.

Sources: create_weights of vLLM's quantization/auto_awq.py, moe_wna16.py, modelopt.py and
compressed_tensors/, can_implement of kernels/linear/mixed_precision/, and
fused_moe/oracle/fp8.py (refine_fp8_moe_block_shape).
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

from testbed.core.hf_linears import Linear
from testbed.core.hf_quantization import pair_of
from testbed.core.hf_schemes import FP8_BLOCK_BITS, scheme_of
from testbed.core.scale_blocks import BLOCK, Block, bits_of_shape, block_on, cut_share
from testbed.core.specs import ModelSpec
from testbed.vllm.attention_backends import FP8_CAPABILITY, HOPPER
from testbed.vllm.checkpoints import Quantization
from testbed.vllm.generations import capability_of
from testbed.vllm.limits import Limits
from testbed.vllm.option_reader import OptionReader

GPUS = "--tensor-parallel-size"
IN_HALF = ("half", "float16")
LEAST = 32  # weights of a group into which moe_wna16 divides those of experts
MACHETE, MACHETE_GROUP = 64, 128  # columns of which Hopper's kernel takes any multiple
# Columns of dense layers and of experts
OF_MODELOPT = {"NVFP4": (16, 1), "W4A16_NVFP4": (16, 1), "MXFP8": (32, 32), "FP8_PB_WO": (128, 1)}


def check_scale_groups(
    reader: OptionReader,
    model: ModelSpec,
    limits: Limits,
    quantization: Quantization,
    text_type: str = "",
) -> None:
    """Raise InputError for quantised weights of which a GPU would hold a part of a block or of a
    group. text_type: as of Checkpoint.
    """
    bits_of = scheme_of(quantization.values) if quantization.values else bits_of_shape(model)
    is_plain = model.weight_bits is None and (model.experts is None or model.experts.bits is None)
    if is_plain or bits_of is None:
        return
    blocks = _Blocks(reader, model, limits, quantization)

    def block_of(linear: Linear) -> Block:
        bits = bits_of(linear)
        return Block() if bits is None else blocks.of(linear, bits)

    shares = limits.num_gpus, limits.num_expert_parts
    if problem := cut_share(model, *shares, block_of, text_type):
        raise reader.does_not_start(GPUS, problem)


@dataclass(frozen=True)
class _Blocks:
    """The blocks and groups of a checkpoint's layers, by default those of FP8."""

    reader: OptionReader
    model: ModelSpec
    limits: Limits
    quantization: Quantization

    def of(self, linear: Linear, bits: float) -> Block:
        values = self.quantization.values
        method = values.get("quant_method")
        if method == "fp8" or not values:
            return self._of_fp8(linear, bits)
        if not self.reader.release.cuts_no_groups:
            return Block()
        if method == "modelopt":
            algorithm = str((values.get("quantization") or values).get("quant_algo")).upper()
            return Block(OF_MODELOPT.get(algorithm, (1, 1))[linear.is_routed])
        if method == "compressed-tensors":
            return self._of_compressed(linear, list(values["config_groups"].values()))
        return Block(self._packed(linear, method))

    def _of_fp8(self, linear: Linear, bits: float) -> Block:
        """A fused layer may end within a block; experts' blocks are divided down to a size, but for
        GPUs without FP8 tensor cores, whose kernels are Marlin's.
        """
        rows, columns = self.quantization.values.get("weight_block_size") or (
            (BLOCK, BLOCK) if bits == FP8_BLOCK_BITS else (1, 1)
        )
        block = block_on(linear, self._shares_of(linear), rows, columns)
        if linear.is_routed:
            is_old = capability_of(self.reader.gpu) < FP8_CAPABILITY
            part = linear.columns // self.limits.num_expert_parts
            size = gcd(part, self.model.hidden_size, rows, columns)
            is_divided = not is_old and size >= self.reader.release.least_scale_block
            return Block() if is_divided else block
        has_rows = len(linear.parts) == 1 and self.reader.release.cuts_no_groups
        return block if has_rows else Block(block.columns)

    def _shares_of(self, linear: Linear) -> int:
        return self.limits.num_expert_parts if linear.is_routed else self.limits.num_gpus

    def _of_compressed(self, linear: Linear, entries: list[Any]) -> Block:
        """llm-compressor's blocks, and groups of integers beside activations of 16 bits."""
        weights = entries[0].get("weights") or {}
        if len(entries) > 1:
            return Block()
        if block := pair_of(weights.get("block_structure")):
            return block_on(linear, self._shares_of(linear), *block)
        is_packed = weights.get("type") == "int" and not entries[0].get("input_activations")
        return Block(_group(weights.get("group_size")) if is_packed else 1)

    def _packed(self, linear: Linear, method: Any) -> int:
        """Columns of AWQ's groups and GPTQ's."""
        group = self.quantization.group
        if linear.is_routed:
            return gcd(group, LEAST)
        if method == "awq":
            return group
        if self._is_in_half and linear.columns % group == 0:
            return 1  # Exllama takes any share of whole groups
        is_hopper = capability_of(self.reader.gpu)[0] == HOPPER
        return MACHETE if is_hopper and group == MACHETE_GROUP else group

    @property
    def _is_in_half(self) -> bool:
        """True if the model may be served in float16."""
        asked = self.reader.value("--dtype")
        return (self.quantization.dtype if asked in (None, "auto") else asked) in ("", *IN_HALF)


def _group(size: Any) -> int:
    return size if type(size) is int and size > 0 else 1
