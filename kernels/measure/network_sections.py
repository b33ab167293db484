"""Sections of a profile without attention: the layers of a network in sequence, its head and its
embeddings.

The engine's network runs under load, the largest counts first and without a pause: at the clock
that the power limit allows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from testbed.core.specs import ModelSpec
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.maths import PlainMaths
from testbed.kernels.engine.network import Bind, Network
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.measure.bench_inputs import Calls, shard_shape
from testbed.kernels.measure.sweeps import REPLAYS, Point, point, swept
from testbed.kernels.measure.timing import num_rotations, time_graph

LEAST_LAYERS = (
    8  # so that copies of their input and of attention's output, one each, take no time of them
)


def shard_network(model: ModelSpec, num_gpus: int) -> Network:
    """A few layers and the head of one GPU's shard, in torch, without RoPE; the layers are larger
    than the L2 cache.
    """
    shape, bytes_of_layer = shard_shape(model, num_gpus), 2 * model.layer_params // num_gpus
    spec = replace(
        model,
        num_layers=min(model.num_layers, max(LEAST_LAYERS, num_rotations(bytes_of_layer))),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        ffn_size=model.ffn_size // num_gpus,
        vocab_size=model.vocab_size // num_gpus,
    )
    arch = Architecture(spec, "opt" if model.ffn_matrices == 2 else "llama")
    network = Network(arch, random_weights(arch, 0, "cuda", torch.float16), PlainMaths())
    network.turns = None
    return network


def without_attention(output: Tensor) -> Bind:
    """The same output of attention in every layer; it is random, since constant bits would draw
    less power.
    """

    def bind(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        out.copy_(output)
        return lambda layer: None

    return bind


def all_layers(network: Network, x: Tensor, positions: Tensor, bind: Bind) -> Tensor:
    """Every layer once, on a copy of x."""
    with torch.inference_mode():
        x = x.clone()
        network.run_layers(x, positions, bind)
    return x


def layer_points(
    network: Network, counts: Sequence[int], after: Callable[[], object] = int
) -> list[Point]:
    """Points of a layer without attention and cache write, by tokens; `after` is called after
    each.
    """
    points, spec = [], network.arch.spec
    for count in sorted(counts, reverse=True):
        x = torch.randn(count, spec.hidden_size, dtype=torch.float16, device="cuda")
        output = torch.randn(
            count, spec.num_heads, spec.head_size, dtype=torch.float16, device="cuda"
        )
        positions = torch.arange(count, device="cuda") % spec.max_len
        whole = time_graph(
            [partial(all_layers, network, x, positions, without_attention(output))], REPLAYS
        )
        after()
        points.append(point(count, timing=whole.per(spec.num_layers)))
    return sorted(points)


def head_points(network: Network, counts: Sequence[int], sampled: bool = False) -> list[Point]:
    """The final norm and the output projection, and the most likely token if `sampled`, by rows."""
    w, spec = network.weights, network.arch.spec
    heads = w.head, w.head.clone()  # in turn, so that neither is in the L2 cache

    def run(x: Tensor, head: Tensor) -> Tensor:
        logits = network.project_out(x, None, head)
        return logits.argmax(dim=1) if sampled else logits

    def calls(count: int) -> Calls:
        x = torch.randn(count, spec.hidden_size, dtype=torch.float16, device="cuda")
        return [partial(run, x, head) for head in heads]

    return swept(counts, calls)


def embedding_points(network: Network, counts: Sequence[int]) -> list[Point]:
    """Embeddings of tokens and, if they are learned, of positions, by tokens."""
    spec = network.arch.spec

    def calls(count: int) -> Calls:
        tokens = torch.randint(spec.vocab_size, (count,), device="cuda")
        return [partial(network.embed, tokens, tokens % spec.max_len)]

    return swept(counts, calls)
