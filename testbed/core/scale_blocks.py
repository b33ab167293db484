"""Shares of GPUs that cut a block or a group of weights with a common scale.

Sources: vLLM's fp8_utils.py (validate_fp8_block_shape) and fused_moe/oracle/fp8.py
(refine_fp8_moe_block_shape), SGLang's fp8.py (validate_block_quant_shapes, Fp8MoEMethod).
"""

from collections.abc import Callable
from math import gcd

from testbed.core.hf_linears import Linear, linears_of
from testbed.core.hf_schemes import FP8_BLOCK_BITS
from testbed.core.specs import ModelSpec

BLOCK = 128  # weights, each way
INPUTS = ("o_proj", "down_proj")  # ends of names of the matrices whose inputs GPUs divide


def cut_block(
    model: ModelSpec, num_gpus: int, expert_shares: int, least: int = BLOCK
) -> str | None:
    """The matrix in FP8 that a share of num_gpus GPUs cuts within a block of scales; None: none.

    expert_shares: GPUs that divide one expert. least: the narrowest block into which a server
    divides those of experts' scales, if it does.
    """
    of_experts = experts_have_blocks(model)
    is_dense = num_gpus > 1 and model.weight_bits == FP8_BLOCK_BITS

    def block_of(linear: Linear, width: int) -> int:
        if not linear.is_routed:
            return BLOCK if is_dense else 1
        block = gcd(width // expert_shares, model.hidden_size, BLOCK)
        return BLOCK if of_experts and block < least else 1

    has_blocks = of_experts or is_dense
    return cut_share(model, num_gpus, expert_shares, block_of) if has_blocks else None


def cut_share(
    model: ModelSpec,
    num_gpus: int,
    expert_shares: int,
    block_of: Callable[[Linear, int], int],
    kind: str = "",
) -> str | None:
    """The matrix of whose input a GPU's share is no multiple of block_of it and its width."""
    for linear in linears_of(model, kind):
        width, shares = linear.num_params // model.hidden_size, num_gpus
        if linear.is_routed and model.experts:
            width, shares = model.experts.size, expert_shares
        elif not linear.name.endswith(INPUTS):
            continue
        block, columns = block_of(linear, width), width // shares
        if columns % block:
            name = f"the {width} columns of {linear.name}"
            return f"{name} are {columns} on each of {shares} GPUs, no whole blocks of {block}"
    return None


def experts_have_blocks(model: ModelSpec) -> bool:
    """True if the model has experts whose weights have a scale for each block."""
    experts = model.experts
    return experts is not None and (experts.bits or model.weight_bits) == FP8_BLOCK_BITS
