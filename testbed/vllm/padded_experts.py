"""The padding of MXFP4 experts: their kernels take rows and columns of whole tiles.

The kernels follow from the GPU's generation: Triton's on Hopper, TensorRT-LLM's on B200, Marlin's
on others. Source: vLLM, model_executor/layers/fused_moe/oracle/mxfp4.py.
"""

from typing import NamedTuple

from testbed.core.hf_weights import MXFP4_BITS
from testbed.core.slots import ceil_div
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.vllm.attention_backends import BLACKWELL, HOPPER
from testbed.vllm.generations import capability_of
from testbed.vllm.limits import Limits
from testbed.vllm.releases import Release


class Tiles(NamedTuple):
    """The hidden size, and a GPU's part of an expert's columns, are multiples of these."""

    hidden: int
    columns: int


TRITON, MARLIN = Tiles(1, 64), Tiles(256, 128)


def expert_padding_bytes(model: ModelSpec, limits: Limits, gpu: GpuSpec, release: Release) -> float:
    """Bytes that padding adds on each GPU; 0 for experts of other types.

    Raises:
        InputError: the GPU's generation is unknown, and the model has such experts.
    """
    experts = model.experts
    if experts is None or experts.bits != MXFP4_BITS:
        return 0.0
    tiles = _tiles(gpu, release)
    num_parts = 1 if limits.has_whole_experts else limits.num_gpus
    columns = ceil_div(experts.size, num_parts)
    padded = _up(model.hidden_size, tiles.hidden) * _up(columns, tiles.columns)
    added = model.ffn_matrices * (padded - model.hidden_size * columns)
    num_sharing = limits.num_expert_ranks * (limits.num_gpus // num_parts)
    return added * MXFP4_BITS / 8 * model.num_expert_layers * experts.count / num_sharing


def _tiles(gpu: GpuSpec, release: Release) -> Tiles:
    generation = capability_of(gpu)[0]
    if generation == BLACKWELL:
        return Tiles(MARLIN.hidden, release.expert_tile)
    return TRITON if generation == HOPPER else MARLIN


def _up(count: int, multiple: int) -> int:
    return ceil_div(count, multiple) * multiple
