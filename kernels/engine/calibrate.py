"""A profile of the engine: a shipped one, whose sections without attention are measured on the engine's own layers.

python -m kernels.engine.calibrate --models opt-13b,llama-3-8b --out FOLDER

`testbed calibrate` measures layers as torch runs them, operation by operation, and one kind of work at a time. Here all
layers of the real model run after each other as they do in an iteration, fused and with RoPE, the largest token counts
first and without a pause: so under load, at the clock that the power limit leaves, which each section's note names.
Whole iterations are served then, and what they take beyond the sum of all sections is a section too: `launched_singly`
with a prompt, which is launched kernel by kernel, `launched_together` for decodes, which are a graph.
Batches of decodes are padded to the sizes of CUDA graphs (cuda_graph_sizes). Attention, moves and the rest stay.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.engine.architecture import of_spec
from kernels.engine.assemble import Options
from kernels.engine.fused_maths import FusedMaths
from kernels.engine.graphs import BUCKETS
from kernels.engine.launches import DECODES, Bench, beyond, decodes_alone, prompts_beside_decodes
from kernels.engine.network import Network, Pass
from kernels.engine.pairs.memory import free
from kernels.engine.plain_attention import Attention
from kernels.engine.ragged import Ragged
from kernels.engine.weights import random_weights
from kernels.measure.calibrate import PER_LAYER, dump, section
from kernels.measure.fingerprint import fingerprint
from kernels.measure.sweeps import REPLAYS, Point, point
from kernels.measure.timing import Timing, time_graph, warm_up
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.memory.contiguous.contiguous import ContiguousOracle
from testbed.memory.paged.paged import Paged

GRAPHS = [size for size in BUCKETS if size <= 128]
TOKENS = (*GRAPHS, *range(160, 1025, 32), *range(1152, 2561, 128), *range(2816, 4097, 256))
ROWS = (*GRAPHS, 192, 256)
PROMPTS, BATCHES = (8, 48, 112, 176, 240, 368, 496, 752, 1008, 2032), (1, 8, 16, 32, 64)
OPTIONS = Options("cuda", torch.float16, graphs=128, warm=tuple(length + DECODES for length in PROMPTS))


class NoAttention(Attention):
    """What is measured has none: what it would have said is random, since idle bits would draw less power."""

    def __init__(self, said: Tensor) -> None:
        self.said = said

    def open(self, batch: Ragged) -> None:
        """See Attention."""

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        """See Attention."""
        out.copy_(self.said)
        return lambda layer: None


def main() -> None:
    """Measure the models of the command line and write a profile for each."""
    parser = argparse.ArgumentParser("python -m kernels.engine.calibrate", description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="opt-13b,llama-3-8b")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(","):
        profile = calibrate(name)
        (options.out / f"h200-{name}-tp1.json").write_text(dump(profile), encoding="utf-8")
        print(name, profile["sections"]["linear"]["note"], flush=True)
        for what in ("launched_singly", "launched_together"):
            print(name, what, profile["sections"][what]["points"], flush=True)
        free()


def calibrate(name: str) -> dict[str, Any]:
    """The shipped profile of a model with the engine's own sections."""
    spec = read_model(name)
    arch = of_spec(spec)
    network = Network(arch, random_weights(arch, 0, "cuda", torch.float16), FusedMaths())
    warm_up()
    profile = read_profile(f"h200-{name}-tp1")
    linear, clocks = linear_points(network)
    note = f"the engine's layers in a row, RoPE included; SM clock {min(clocks)} to {max(clocks)} MHz, largest first"
    profile["sections"] |= {
        "linear": section(PER_LAYER, ("num_tokens",), linear, note),
        "output_head": section("once per iteration", ("num_rows",), head_points(network), "norm, product, argmax"),
        "once_per_iteration": section("once per iteration", ("num_tokens",), embedding_points(network), "embedding"),
    }
    profile.pop("fit", None)  # it was of other sections
    profile |= {"fingerprint": fingerprint(), "cuda_graph_sizes": GRAPHS}
    profile["sections"] |= launched_sections(profile, network)
    return profile


def linear_points(network: Network) -> tuple[list[Point], list[int]]:
    """Everything of a layer but attention and cache write, by tokens; and the clocks at the end of each point."""
    points, clocks, spec = [], [], network.arch.spec
    for count in reversed(TOKENS):
        x = torch.randn(count, spec.hidden_size, dtype=torch.float16, device="cuda")
        said = torch.randn(count, spec.num_heads, spec.head_size, dtype=torch.float16, device="cuda")
        positions = torch.arange(count, device="cuda") % spec.max_len
        whole = time_graph([lambda x=x, at=positions, a=said: all_layers(network, x, at, a)], REPLAYS)
        clocks.append(int(torch.cuda.clock_rate()))
        points.append(point(count, timing=_divided(whole, spec.num_layers)))
    return sorted(points), clocks


def all_layers(network: Network, x: Tensor, positions: Tensor, said: Tensor) -> Tensor:
    """Every layer once, on a copy of x; attention says the same in each."""
    carried: Tensor | None = None
    with torch.inference_mode():
        x = x.clone()
        one_layer = Pass(network, x, positions, NoAttention(said))
        for i, layer in enumerate(network.layers):
            carried = one_layer(i, layer, carried)
    return x


def head_points(network: Network) -> list[Point]:
    """The final norm, the output projection and the most likely token, by rows."""
    w, spec = network.weights, network.arch.spec

    def head(x: Tensor) -> None:
        h = torch.empty_like(x)
        network.maths.norm(h, x, network.arch.norm_eps)(w.norm, None)
        torch.nn.functional.linear(h, w.head).argmax(dim=1)

    xs = [torch.randn(count, spec.hidden_size, dtype=torch.float16, device="cuda") for count in ROWS]
    return [point(len(x), timing=time_graph([lambda x=x: head(x)], REPLAYS)) for x in xs]


def embedding_points(network: Network) -> list[Point]:
    """Embeddings of tokens and, where they are learned, of positions, by tokens."""
    w, points = network.weights, []
    for count in (1, 32, 128, 512, 2560):
        tokens = torch.randint(len(w.embedding), (count,), device="cuda")

        def embed(tokens: Tensor = tokens) -> None:
            x = torch.nn.functional.embedding(tokens, w.embedding)
            if w.positions is not None:
                x += torch.nn.functional.embedding(tokens % len(w.positions), w.positions)

        points.append(point(count, timing=time_graph([embed], REPLAYS)))
    return points


def launched_sections(profile: dict[str, Any], network: Network) -> dict[str, Any]:
    """Whole iterations beyond the profile's other sections, both with a prompt and of decodes alone."""
    bench = Bench(network.arch, network.weights, OPTIONS)
    price = kernels_of(profile, network.arch.spec, "paged", "equal")
    served = prompts_beside_decodes(bench, PROMPTS, price)
    singly = [point(length + DECODES, timing=beyond(found, price)) for length, found in served.items()]
    together = []
    for kernel, kind in (("paged", Paged), ("contiguous", ContiguousOracle)):
        price = kernels_of(profile, network.arch.spec, kernel, "ragged")
        for batch in BATCHES:
            free()
            together.append(point(kernel, batch, timing=beyond(decodes_alone(bench, kind, batch), price)))
    note = "whole iterations as served, beyond the kernels of the other sections"
    return {
        "launched_singly": section("an iteration with a prompt beside decodes", ("num_tokens",), singly, note),
        "launched_together": section("an iteration of decodes alone", ("kernel", "num_seqs"), together, note),
    }


def kernels_of(profile: dict[str, Any], spec: ModelSpec, kernel: str, spread: str) -> CostModel:
    """The sum of the measured kernels, without software time."""
    return ProfileCost(spec, None, profile, Choices(kernel=kernel, spread=spread, overhead_s=0.0))


def _divided(timing: Timing, parts: int) -> Timing:
    return Timing(timing.median_us / parts, timing.low_us / parts, timing.high_us / parts)


if __name__ == "__main__":
    main()
