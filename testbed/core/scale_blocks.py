"""Shares of GPUs that cut a block or a group of weights with a common scale.

Sources: vLLM's fp8_utils.py (validate_fp8_block_shape) and linear.py
(_maybe_allow_fp8_block_shape_mismatch), SGLang's fp8.py (validate_block_quant_shapes,
Fp8MoEMethod).
"""

from collections.abc import Callable
from math import lcm
from typing import NamedTuple

from testbed.core.hf_linears import Linear, linears_of
from testbed.core.hf_schemes import FP8_BLOCK_BITS, Bits
from testbed.core.specs import ModelSpec

BLOCK = 128  # weights, each way


class Block(NamedTuple):
    """Numbers of which a GPU's share of a matrix's columns and rows must be multiples."""

    columns: int = 1
    rows: int = 1


def block_on(linear: Linear, num_shares: int, rows: int, columns: int) -> Block:
    """The block of weights in blocks of scales: one share takes any number of columns. Those of an
    expert are the rows of its other matrices.
    """
    divided = columns if num_shares > 1 else 1
    return Block(lcm(rows, divided) if linear.is_routed else divided, rows)


def bits_of_shape(model: ModelSpec) -> Bits:
    """Bits of a weight by its layer, for a shape whose layers that all tokens share are alike."""
    of_experts = (model.experts.bits if model.experts else None) or model.weight_bits
    return lambda linear: of_experts if linear.is_routed else model.weight_bits


def cut_block(model: ModelSpec, num_gpus: int) -> str | None:
    """The matrix in FP8 that a share of num_gpus GPUs cuts within a block of scales; None: none."""
    bits_of = bits_of_shape(model)

    def block_of(linear: Linear) -> Block:
        has_blocks = bits_of(linear) == FP8_BLOCK_BITS
        return block_on(linear, num_gpus, BLOCK, BLOCK) if has_blocks else Block()

    return cut_share(model, num_gpus, num_gpus, block_of)


def cut_share(
    model: ModelSpec,
    num_gpus: int,
    expert_shares: int,
    block_of: Callable[[Linear], Block],
    kind: str = "",
) -> str | None:
    """The matrix of which a GPU's share is no multiple of its block; None: none. expert_shares:
    GPUs that divide one expert. On one GPU the last of a layer's matrices may end within a block.
    """
    for linear in linears_of(model, kind):
        shares, block = expert_shares if linear.is_routed else num_gpus, block_of(linear)
        rows = linear.rows if shares > 1 else linear.rows[:-1]
        divided = [("columns", linear.columns, 1, block.columns)]
        divided += [("rows", count, size, block.rows) for count, size in rows]
        for name, count, size, multiple in divided:
            part = max(1, count // shares) * size  # heads are copied if they are fewer
            if count and part % multiple:
                whole = f"the {count * size} {name} of {linear.name}"
                return f"{whole} are {part} on each of {shares} GPUs, no whole blocks of {multiple}"
    return None
