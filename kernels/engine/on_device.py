"""Objects that compute on a device: pools, network, attention and moves; and the forward pass over
them, kernel by kernel or by CUDA graphs. Neither policy nor scheduler.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.cuda_attention import CudaAttention
from testbed.kernels.engine.graphs import Captures, DecodeGraphs
from testbed.kernels.engine.layout import Blocks, Pages, Pools, make_pools
from testbed.kernels.engine.maths import FusedMaths, PlainMaths
from testbed.kernels.engine.network import Network, PlainAttention
from testbed.kernels.engine.parallel.ranks import ONE_RANK, OneRank
from testbed.kernels.engine.pool_moves import CudaMoves, LiveTables, Moves
from testbed.kernels.engine.prompt_graphs import PromptGraphs
from testbed.kernels.engine.ragged import Ragged, complete, upload
from testbed.kernels.engine.weights import Weights
from testbed.memory.policy import PoolSpec

Forward = Callable[[Ragged], Tensor]  # the logits of a batch's wanted rows


class Graphs(NamedTuple):
    """Work that is captured as CUDA graphs: iterations of up to prompt_tokens tokens, batches of up
    to decode_seqs decodes with up to max_len tokens each; 0: none. share_from: see
    CudaAttention.share_prefixes.
    """

    decode_seqs: int
    prompt_tokens: int
    max_len: int
    share_from: float = inf


class OnDevice(NamedTuple):
    """The parts of an engine that use the memory of a device."""

    pools: Pools
    network: Network
    attention: PlainAttention
    moves: Moves


def on_device(
    arch: Architecture,
    weights: Weights,
    pool: PoolSpec,
    layout: Blocks,
    live: LiveTables,
    ranks: OneRank = ONE_RANK,
) -> OnDevice:
    """These parts for a pool: by kernels if the weights have 16 bits on a GPU, else in torch."""
    spec, like = arch.spec, weights.embedding
    if like.is_cuda:
        torch.cuda.empty_cache()  # what the weights took while they were loaded
    by_kernels = like.is_cuda and like.dtype != torch.float32
    # In pages all layers share a pool, whose slots are those of one layer
    num_pools = 1 if isinstance(layout, Pages) else spec.num_layers
    pools = make_pools(spec, pool, layout.block_size, like, num_pools)
    if pools.scales is not None and weights.kv_scales is not None:
        pools.scales.copy_(weights.kv_scales)
    network = Network(arch, weights, FusedMaths() if by_kernels else PlainMaths(), ranks)
    attention = (CudaAttention if by_kernels else PlainAttention)(pools, layout, arch.windows)
    moves = (CudaMoves if by_kernels else Moves)(pools, layout, live)
    return OnDevice(pools, network, attention, moves)


def eager(
    network: Network, attention: PlainAttention, launched: Callable[[], None] = lambda: None
) -> Forward:
    """The forward pass, kernel by kernel. launched: called when work on the device begins."""
    return partial(_forward, network, attention, launched)


def _forward(
    network: Network, attention: PlainAttention, launched: Callable[[], None], batch: Ragged
) -> Tensor:
    launched()
    arrays = {"tokens": batch.tokens, "positions": batch.positions, "wanted": batch.wanted}
    if batch.late is not None:
        arrays["late"] = batch.late.rows
    with torch.inference_mode():
        there = upload(arrays, network.weights.embedding.device)
        complete(there, batch)
        attention.open(batch)
        return network.logits(there["tokens"], there["positions"], there["wanted"], attention)


def with_graphs(
    network: Network,
    attention: PlainAttention,
    graphs: Graphs,
    captures: Captures,
    otherwise: Forward,
    launched: Callable[[], None] = lambda: None,
) -> Forward:
    """The forward pass by graphs, captured now, and by `otherwise` if there are none. captures:
    has the graphs until it is released.
    """
    if not isinstance(attention, CudaAttention):
        return otherwise
    attention.share_prefixes(graphs.share_from)
    forward = otherwise
    if graphs.prompt_tokens:
        most, capture = graphs.prompt_tokens, captures.sharing_memory()
        forward = PromptGraphs(network, attention, most, forward, launched, capture).forward
    if graphs.decode_seqs:
        parts = network, attention, graphs.max_len, forward, launched, captures.sharing_memory()
        decodes = DecodeGraphs(*parts)
        decodes.capture(graphs.decode_seqs, graphs.max_len)
        forward = decodes.forward
    return forward
