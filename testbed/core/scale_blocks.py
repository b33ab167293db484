"""FP8 weights with a scale for each block of 128 x 128: a GPU's share of a matrix is whole blocks.

Sources: vLLM's fp8_utils.py (validate_fp8_block_shape) and fused_moe/oracle/fp8.py
(refine_fp8_moe_block_shape), SGLang's fp8.py (validate_block_quant_shapes, Fp8MoEMethod).
"""

from math import gcd

from testbed.core.hf_schemes import FP8_BLOCK_BITS
from testbed.core.specs import ModelSpec

BLOCK = 128  # weights, each way


def cut_block(
    model: ModelSpec, num_gpus: int, expert_shares: int, least: int = BLOCK
) -> str | None:
    """The matrix that a share of num_gpus GPUs cuts within a block of scales; None: none.

    expert_shares: GPUs that divide one expert. least: the narrowest block into which a server
    divides those of experts' scales, if it does.
    """
    if model.experts and experts_have_blocks(model):
        columns = model.experts.size // expert_shares
        if columns % BLOCK and gcd(columns, model.hidden_size, BLOCK) < least:
            return _problem(f"an expert's {model.experts.size} columns", expert_shares, columns)
    if model.weight_bits != FP8_BLOCK_BITS:
        return None
    for name, width in _inputs(model).items():
        if num_gpus > 1 and width // num_gpus % BLOCK:
            return _problem(f"the {width} columns of {name}", num_gpus, width // num_gpus)
    return None


def experts_have_blocks(model: ModelSpec) -> bool:
    """True if the model has experts whose weights have a scale for each block."""
    experts = model.experts
    return experts is not None and (experts.bits or model.weight_bits) == FP8_BLOCK_BITS


def _inputs(model: ModelSpec) -> dict[str, int]:
    """The inputs that GPUs divide of the matrices behind attention and feed-forward columns."""
    widths = {}
    if model.latent is None and model.states is None:
        widths["attention"] = model.num_heads * model.head_size
    if model.experts is None or model.num_expert_layers < model.ffn_layers:
        widths["a feed-forward layer"] = model.ffn_size
    if model.experts and model.experts.shared_size:
        widths["the shared expert"] = model.experts.shared_size
    return widths


def _problem(name: str, num_gpus: int, columns: int) -> str:
    return f"{name} are {columns} on each of {num_gpus} GPUs, no whole blocks of {BLOCK} scales"
