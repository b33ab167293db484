"""The padding of experts in MXFP4 or the model's type: kernels take rows and columns of tiles. More
scales of experts in AWQ and GPTQ, whose groups are divided to be whole in a GPU's part.

The kernels follow from the GPU's generation: Triton's on Hopper, TensorRT-LLM's on B200, Marlin's
on others. Source: vLLM, model_executor/layers/fused_moe/oracle/mxfp4.py and unquantized.py there,
layers/quantization/moe_wna16.py, and third_party/triton_kernels/tensor_details/layout_details/
hopper_value.py and hopper_scale.py.
"""

from math import gcd
from typing import NamedTuple

from testbed.core.hf_schemes import MXFP4_BITS
from testbed.core.slots import ceil_div
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.vllm.attention_backends import BLACKWELL, HOPPER
from testbed.vllm.checkpoints import Quantization
from testbed.vllm.generations import capability_of
from testbed.vllm.limits import Limits
from testbed.vllm.releases import Release


class Tiles(NamedTuple):
    """The hidden size, and a GPU's part of an expert's columns, are multiples of these."""

    hidden: int
    columns: int


TRITON_COLUMNS, MARLIN = 64, Tiles(256, 128)
SCALED = 32  # values of a scale, which has a byte
SCALE_TILE = Tiles(2, 256)  # scales of a row, and rows, of Triton's layout
SCALE_BITS, LEFT_BITS = 16, 16  # of a scale of AWQ's and GPTQ's, and of weights that are left out
NOT_QUANTISED = Quantization()
BIAS_BYTES = 4  # of a value: Triton's are in float32; a ModelSpec counts none


def expert_padding_bytes(
    model: ModelSpec,
    limits: Limits,
    gpu: GpuSpec,
    release: Release,
    quantization: Quantization = NOT_QUANTISED,
) -> float:
    """Bytes that padding or divided groups, and what a release keeps beside it, add on each GPU; 0
    for experts of other types.

    Raises:
        InputError: the GPU's generation is unknown, and the model has such experts.
    """
    experts = model.experts
    if experts is None:
        return 0.0
    num_parts = limits.num_expert_parts
    columns = ceil_div(experts.size, num_parts)
    if experts.bits == MXFP4_BITS:
        loaded = model.ffn_matrices * model.hidden_size * columns * MXFP4_BITS / 8
        added = _expert_bytes(model, columns, gpu, release) - loaded
    elif experts.bits is None and model.weight_bits is None:
        added = _plain_padding(model, columns, gpu, release)
    else:
        added = _scales_of_divided_groups(model, columns, quantization)
    num_sharing = limits.num_gpus * limits.num_expert_ranks // num_parts
    return added * model.num_expert_layers * ceil_div(experts.count, num_sharing)


def _expert_bytes(model: ModelSpec, columns: int, gpu: GpuSpec, release: Release) -> float:
    """Bytes of one expert's part with `columns` columns, as a GPU keeps it."""
    generation = capability_of(gpu)[0]
    if generation == HOPPER:
        return _triton_bytes(model, _up(columns, TRITON_COLUMNS), release)
    tiles = Tiles(MARLIN.hidden, release.expert_tile) if generation == BLACKWELL else MARLIN
    padded = _up(model.hidden_size, tiles.hidden) * _up(columns, tiles.columns)
    return model.ffn_matrices * padded * MXFP4_BITS / 8


def _plain_padding(model: ModelSpec, columns: int, gpu: GpuSpec, release: Release) -> float:
    """Bytes that one expert's part in the model's type is padded by: TensorRT-LLM's kernels of B200
    take whole tiles of columns, and others serve experts that these do not choose.
    """
    is_padded = release.pads_plain_experts and not model.routes_apart
    if not is_padded or capability_of(gpu)[0] != BLACKWELL:
        return 0.0
    width = model.experts.latent_size if model.experts else 0
    added = _up(columns, release.expert_tile) - columns
    return model.ffn_matrices * (width or model.hidden_size) * added * model.dtype_bytes


def _scales_of_divided_groups(model: ModelSpec, columns: int, quantization: Quantization) -> float:
    """Bytes of the scales of one expert's part beyond those of the checkpoint's groups: a kernel of
    its own halves these until they are whole, and keeps no zeros of symmetric ones.
    """
    group, values = quantization.group, quantization.values
    bits = (model.experts.bits if model.experts else None) or model.weight_bits or 0
    if columns % group == 0 or bits >= LEFT_BITS:
        return 0.0
    zero: int = values.get("w_bit", values.get("bits", 0))
    has_zeros = values.get("quant_method") == "awq"
    finer = (SCALE_BITS + zero * has_zeros) / gcd(group, columns, model.hidden_size)
    more_bits = finer - (SCALE_BITS + zero) / group
    return model.ffn_matrices * model.hidden_size * columns * more_bits / 8


def _triton_bytes(model: ModelSpec, columns: int, release: Release) -> float:
    """Bytes of the matrices of inputs x outputs: values whose rows are whole tiles, their scales,
    also as they were loaded if the release keeps these, and biases.
    """
    total = 0.0
    hidden, gated = model.hidden_size, (model.ffn_matrices - 1) * columns
    for inputs, outputs in ((hidden, gated), (columns, hidden)):
        scales = ceil_div(inputs, SCALED)
        total += _up(inputs, release.expert_row_tile) * outputs / 2
        total += _up(scales, SCALE_TILE.hidden) * _up(outputs, SCALE_TILE.columns)
        total += scales * outputs if release.keeps_expert_scales else 0
        total += BIAS_BYTES * outputs
    return total


def _up(count: int, multiple: int) -> int:
    return ceil_div(count, multiple) * multiple
