"""A profile of the engine: a shipped profile whose sections without attention are measured on the engine's layers.

`testbed calibrate` measures layers in torch, operation by operation, and one kind of work at a time. With --engine all
layers of the real model run in sequence as in an iteration, fused and with RoPE, the largest token counts first and
without a pause: under load, at the clock that the power limit allows, which the note records. Then whole iterations
are served; their time beyond the sum of all sections becomes a section: `launched_eager` for iterations with a prompt,
which run kernel by kernel, and `launched_graph` for decodes, which run as a CUDA graph. Decode batches are padded to
the sizes of CUDA graphs (cuda_graph_sizes). Attention, moves and the other sections do not change.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel
from testbed.cost.profile import Choices, ProfileCost
from testbed.kernels.engine.architecture import of_spec
from testbed.kernels.engine.bench import DECODES, Bench, beyond, decodes_alone, free, prompts_with_decodes
from testbed.kernels.engine.graphs import BUCKETS
from testbed.kernels.engine.maths import FusedMaths
from testbed.kernels.engine.network import Attention, Network, Pass
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.engine.serve import Options
from testbed.kernels.engine.weights import random_weights
from testbed.kernels.measure.profile_sections import PER_LAYER, section, shipped
from testbed.kernels.measure.sweeps import REPLAYS, Point, point, swept
from testbed.kernels.measure.timing import fingerprint, time_graph, warm_up
from testbed.memory.contiguous.contiguous import ContiguousOracle
from testbed.memory.paged.paged import Paged

GRAPHS = [size for size in BUCKETS if size <= 128]
TOKENS = (*GRAPHS, *range(160, 1025, 32), *range(1152, 2561, 128), *range(2816, 4097, 256))
ROWS = (*GRAPHS, 192, 256)
PROMPTS, BATCHES = (8, 48, 112, 176, 240, 368, 496, 752, 1008, 2032), (1, 8, 16, 32, 64)
OPTIONS = Options("cuda", torch.float16, graphs=128, warm=tuple(length + DECODES for length in PROMPTS))


class NoAttention(Attention):
    """No attention, for measurements: its output is random, since constant bits would draw less power."""

    def __init__(self, output: Tensor) -> None:
        self.output = output

    def open(self, batch: Ragged) -> None:
        """See Attention."""

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        out.copy_(self.output)
        return lambda layer: None


def with_engine_sections(name: str) -> dict[str, Any]:
    """The shipped profile of a model with the engine's sections."""
    free()
    spec = read_model(name)
    arch, profile = of_spec(spec), shipped(spec, 1)
    network = Network(arch, random_weights(arch, 0, "cuda", torch.float16), FusedMaths())
    warm_up()
    linear, clocks = linear_points(network)
    note = f"the engine's layers in sequence, with RoPE; SM clock {min(clocks)} to {max(clocks)} MHz, largest first"
    profile["sections"] |= {
        "linear": section(PER_LAYER, ("num_tokens",), linear, note),
        "output_head": section("once per iteration", ("num_rows",), head_points(network), "norm, product, argmax"),
        "once_per_iteration": section("once per iteration", ("num_tokens",), embedding_points(network), "embedding"),
    }
    profile.pop("fit", None)  # of the replaced sections
    profile |= {"fingerprint": fingerprint(), "cuda_graph_sizes": GRAPHS}
    profile["sections"] |= launched_sections(profile, network)
    return profile


def linear_points(network: Network) -> tuple[list[Point], list[int]]:
    """Points of a layer without attention and cache write, by tokens; and the SM clock in MHz after each point."""
    points, clocks, spec = [], [], network.arch.spec
    for count in reversed(TOKENS):
        x = torch.randn(count, spec.hidden_size, dtype=torch.float16, device="cuda")
        output = torch.randn(count, spec.num_heads, spec.head_size, dtype=torch.float16, device="cuda")
        positions = torch.arange(count, device="cuda") % spec.max_len
        whole = time_graph([partial(all_layers, network, x, positions, output)], REPLAYS)
        clocks.append(int(torch.cuda.clock_rate()))
        points.append(point(count, timing=whole.per(spec.num_layers)))
    return sorted(points), clocks


def all_layers(network: Network, x: Tensor, positions: Tensor, output: Tensor) -> Tensor:
    """Every layer once, on a copy of x, with the same attention output in each."""
    carried: Tensor | None = None
    with torch.inference_mode():
        x = x.clone()
        one_layer = Pass(network, x, positions, NoAttention(output))
        for i, layer in enumerate(network.layers):
            carried = one_layer(i, layer, carried)
    return x


def head_points(network: Network) -> list[Point]:
    """The final norm, the output projection and the most likely token, by rows."""
    w = network.weights

    def head(x: Tensor) -> None:
        h = torch.empty_like(x)
        network.maths.norm(h, x, network.arch.norm_eps)(w.norm, None)
        torch.nn.functional.linear(h, w.head).argmax(dim=1)

    width = network.arch.spec.hidden_size
    return swept(ROWS, lambda n: [partial(head, torch.randn(n, width, dtype=torch.float16, device="cuda"))])


def embedding_points(network: Network) -> list[Point]:
    """Embeddings of tokens and, where they are learned, of positions, by tokens."""
    w = network.weights

    def embed(tokens: Tensor) -> None:
        x = torch.nn.functional.embedding(tokens, w.embedding)
        if w.positions is not None:
            x += torch.nn.functional.embedding(tokens % len(w.positions), w.positions)

    num_ids = len(w.embedding)
    return swept((1, 32, 128, 512, 2560), lambda n: [partial(embed, torch.randint(num_ids, (n,), device="cuda"))])


def launched_sections(profile: dict[str, Any], network: Network) -> dict[str, Any]:
    """Time of whole iterations beyond the profile's other sections, with a prompt and of decodes alone."""
    bench = Bench(network.arch, network.weights, OPTIONS)
    cost = kernels_of(profile, network.arch.spec, "paged", "equal")
    served = prompts_with_decodes(bench, PROMPTS, cost)
    eager = [point(length + DECODES, timing=beyond(found, cost)) for length, found in served.items()]
    graph = []
    for kernel, kind in (("paged", Paged), ("contiguous", ContiguousOracle)):
        cost = kernels_of(profile, network.arch.spec, kernel, "ragged")
        for batch in BATCHES:
            graph.append(point(kernel, batch, timing=beyond(decodes_alone(bench, kind, batch), cost)))
    note = "whole iterations as served, beyond the kernels of the other sections"
    return {
        "launched_eager": section("an iteration with a prompt and decodes", ("num_tokens",), eager, note),
        "launched_graph": section("an iteration of decodes alone", ("kernel", "num_seqs"), graph, note),
    }


def kernels_of(profile: dict[str, Any], spec: ModelSpec, kernel: str, spread: str) -> CostModel:
    """The sum of the measured kernels, without software time."""
    return ProfileCost(spec, None, profile, Choices(kernel=kernel, spread=spread, overhead_s=0.0))
