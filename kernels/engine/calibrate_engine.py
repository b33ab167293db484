"""A profile of the engine: a profile of this GPU whose sections without attention are measured on
the engine's layers, and whose iterations are measured as this machine serves them.

`testbed gpu calibrate` measures layers in torch, operation by operation, and one kind of work at a
time. With --system engine all layers of the real model run in sequence as in an iteration, fused
and with RoPE, the largest token counts first and without a pause: under load, at the clock that the
power limit allows, which the note records. Batches are padded to the sizes of CUDA graphs
(cuda_graph_sizes). Attention, moves and the other sections are those of the profile that ships for
this GPU, or are measured first if none ships.

Then whole iterations are served twice. With a scheduler that plans ahead the host's work hides
behind the GPU's, unless it is longer: the time of such iterations beyond the sum of all sections
(transfers of arrays, kernels that wait for each other) becomes `launched_eager` with a prompt,
whose attention is launched between the graphs of two layers, and `launched_graph` of decodes, which
run as one graph. With a scheduler that plans one iteration after the other the same work takes
longer by what the host does while the GPU waits: it reads results, records them, plans, prepares,
and launches the first. That is part `first` of `launch_prompts` and `launch_decodes`, which
therefore has all software of the engine; part `whole` is how long the host launches. Both are of
this host, which the fingerprint names.

On several GPUs layers are measured on one shard, alone, and whole iterations on all GPUs: their
time beyond layers and all-reduces is that of the control message, of the split embedding, of the
gathered logits, and of ranks that wait for each other.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.cost.profile import Choices, ProfileCost
from testbed.cost.sections import SYSTEM, THIS_ENGINE, Kernel, Spread
from testbed.cost.software import KERNELS_ALONE
from testbed.kernels.engine.architecture import Architecture, of_spec
from testbed.kernels.engine.device_memory import free
from testbed.kernels.engine.engine_iterations import decodes_alone, prompts_with_decodes
from testbed.kernels.engine.loaded_model import MOST_TOKENS, Bench, ahead, in_turn
from testbed.kernels.engine.maths import FusedMaths
from testbed.kernels.engine.network import Network
from testbed.kernels.engine.parallel.processes import start
from testbed.kernels.engine.parallel.shards import Shard
from testbed.kernels.engine.parallel.worker import Source
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.served_run import Options
from testbed.kernels.engine.sizes import BUCKETS, sizes_up_to
from testbed.kernels.measure.all_reduce import NO_DATA_SHEET
from testbed.kernels.measure.network_sections import embedding_points, head_points, layer_points
from testbed.kernels.measure.profile_sections import (
    described,
    shipped,
    whole_profile,
)
from testbed.kernels.measure.sweeps import Point, point
from testbed.kernels.measure.timing import Timing, fingerprint, warm_up
from testbed.memory.contiguous.reservations import ContiguousOracle
from testbed.memory.paged.paged import Paged

GRAPHS = [size for size in BUCKETS if size <= 128]
PROMPT_GRAPHS = MOST_TOKENS
SIZES = sizes_up_to(PROMPT_GRAPHS)
TOKENS = (*SIZES, *range(2816, 4097, 256))
ROWS, EMBEDDED = (*GRAPHS, 192, 256), (1, 32, 128, 512, 2560)
BATCHES = (1, 8, 16, 32, 64, 128)  # sequences that decode alone
# PROMPTS: lengths of a prompt that runs among DECODES decodes. An iteration with the longest one
# takes the largest graph, and still fits the budget if a few sequences more are running.
# The lengths LAUNCHED also run among each number of decodes in VISITED. The largest of these
# numbers is added to the length in `launch_prompts`.
PROMPTS = (8, 48, 112, 176, 240, 368, 496, 752, 1008, 1984, 2480)
LAUNCHED = (48, 240, 496, 1008, 1984, 2480)
DECODES, VISITED = 16, (1, 16, 64)
Seconds = Callable[[Iteration], float]
OPTIONS = Options(graphs=128, prompt_graphs=PROMPT_GRAPHS, warm=(64, 512, 2048))


def with_engine_sections(name: str, num_gpus: int) -> dict[str, Any]:
    """The profile of a model on these GPUs with the engine's sections: the layers of a shard on one
    of them, and whole iterations on all.
    """
    free()
    spec = read_model(name)
    arch = of_spec(spec)
    profile = shipped(spec, num_gpus) or whole_profile(spec, num_gpus)
    free()
    network = network_of_shard(arch, num_gpus)
    profile["sections"] |= layer_sections(network)
    profile.pop("fit", None)  # of the replaced sections
    profile["sections"].pop("overhead", None)  # launches have all software
    about = {**fingerprint(), SYSTEM: THIS_ENGINE}
    profile |= {"fingerprint": about, "cuda_graph_sizes": SIZES}
    if num_gpus == 1:
        bench = Bench(arch, network.weights, OPTIONS)
        profile["sections"] |= described(served_points(profile, spec, server=None, bench=bench))
        return profile
    del network
    free()
    server = ServerSpec("measured", NO_DATA_SHEET, num_gpus)
    ranks = start(Source(arch), num_gpus)
    with closing(ranks.lead):
        bench = Bench(ranks.arch, ranks.weights, OPTIONS, ranks.lead)
        profile["sections"] |= described(served_points(profile, spec, server, bench))
    return profile


def layer_sections(network: Network) -> dict[str, Any]:
    """The layers of a shard, its output head and its embedding, on one GPU."""
    warm_up()
    clocks: list[int] = []  # after each point
    points = {
        "linear": layer_points(
            network, TOKENS, lambda: clocks.append(int(torch.cuda.clock_rate()))
        ),
        "output_head": head_points(network, ROWS, sampled=True),
        "once_per_iteration": embedding_points(network, EMBEDDED),
    }
    note = (
        f"the engine's layers in sequence, with RoPE; SM clock {min(clocks)} to {max(clocks)} "
        f"MHz, largest first"
    )
    return described(points, linear=note, output_head="norm, product, argmax")


def network_of_shard(arch: Architecture, num_gpus: int) -> Network:
    """Rank 0's layers, with its part of the vocabulary, as they compute without the others."""
    shard = Shard(arch, 0, num_gpus)
    weights = random_weights(arch, 0, "cuda", torch.float16, shard)
    local = replace(shard.local, spec=replace(shard.local.spec, vocab_size=shard.num_tokens))
    return Network(local, weights, FusedMaths())


def served_points(
    profile: dict[str, Any], spec: ModelSpec, server: ServerSpec | None, bench: Bench
) -> dict[str, list[Point]]:
    """Whole iterations as they are served: their time beyond the profile's other sections, on
    several GPUs also that of the message, of split embeddings and of gathered logits; and how the
    host launches them.
    """

    def kernels(kernel: Kernel, spread: Spread) -> CostModel:
        choices = Choices(kernel=kernel, spread=spread)
        return ProfileCost(spec, server, profile, choices, KERNELS_ALONE)

    prompts = prompt_points(bench, spec.max_len, kernels("paged", "equal"))
    return prompts | decode_points(bench, kernels)


def prompt_points(bench: Bench, max_len: int, cost: CostModel) -> dict[str, list[Point]]:
    """Iterations with a prompt, which is shorter than max_len tokens. cost: of the kernels."""
    prompts = [length for length in PROMPTS if length < max_len]
    lengths_of = {
        decodes: prompts if decodes == DECODES else [n for n in LAUNCHED if n in prompts]
        for decodes in VISITED
    }
    hidden, waited_for = (
        prompts_with_decodes(bench, planning, lengths_of, cost) for planning in (ahead, in_turn)
    )
    return {
        "launched_eager": [
            point(length + DECODES, timing=beyond(hidden[DECODES, length], cost, on_gpu))
            for length in prompts
            if (DECODES, length) in hidden
        ],
        "launch_prompts": [
            point(part, length + VISITED[-1], decodes + 1, timing=timing)
            for decodes, length in hidden
            if length in LAUNCHED and (decodes, length) in waited_for
            for part, timing in launch(
                hidden[decodes, length], waited_for[decodes, length], cost, on_gpu
            ).items()
        ],
    }


def decode_points(
    bench: Bench, kernels: Callable[[Kernel, Spread], CostModel]
) -> dict[str, list[Point]]:
    """Iterations of decodes alone. kernels: their cost, by attention kernel and spread of
    lengths.
    """
    points: dict[str, list[Point]] = {"launched_graph": []}
    one_graph = replace(bench, options=replace(bench.options, prompt_graphs=0))
    policies: dict[Kernel, Any] = {"paged": Paged, "contiguous": ContiguousOracle}
    for kernel, policy_class in policies.items():
        cost = kernels(kernel, "ragged")
        decodes = decodes_alone(one_graph, policy_class, ahead, BATCHES)
        points["launched_graph"] += [
            point(kernel, batch, timing=beyond(iterations, cost))
            for batch, iterations in decodes.items()
        ]
        if policy_class is Paged:
            one_by_one = decodes_alone(one_graph, policy_class, in_turn, BATCHES)
            points["launch_decodes"] = [
                point(part, batch, timing=timing)
                for batch in decodes
                if batch in one_by_one
                for part, timing in launch(decodes[batch], one_by_one[batch], cost).items()
            ]
    return points


def lasting(iteration: Iteration) -> float:
    """Seconds between the results of two iterations."""
    return iteration.duration_s


def on_gpu(iteration: Iteration) -> float:
    """Seconds that the GPU computes. With a prompt these are not the seconds between results: those
    of the iteration before are read late, when the prompt is launched. A CPU has no other clock.
    """
    return iteration.gpu_s or iteration.duration_s


def beyond(iterations: Sequence[Iteration], cost: CostModel, seconds: Seconds = lasting) -> Timing:
    """Microseconds of iterations beyond the cost model: median, 10th and 90th percentile."""
    return Timing.of(
        [
            seconds(iteration) * 1e6 - cost.iteration(iteration.work) / 1e6
            for iteration in iterations
        ]
    )


def launch(
    hidden: Sequence[Iteration],
    waited_for: Sequence[Iteration],
    cost: CostModel,
    computing: Seconds = lasting,
) -> dict[str, Timing]:
    """The time that the host needs to launch an iteration, by part.

    hidden: iterations that were launched while the one before ran; waited_for: iterations of the
    same work, each launched when the one before had ended. `first` is by how much these last longer
    than the GPU computes; `whole` is how long the host launches a hidden one, at most as long as
    one that is waited for lasts: some 17 graphs with collectives fill the driver's queue, behind
    which a hidden launch waits for the GPU, and no launch outlasts its own iteration.
    """
    hidden_us = beyond(hidden, cost, computing).median_us
    first = Timing(*(max(0.0, us - hidden_us) for us in beyond(waited_for, cost)))
    launching = Timing.of([iteration.launch_s * 1e6 for iteration in hidden])
    lasts = Timing.of([lasting(iteration) * 1e6 for iteration in waited_for])
    whole = Timing(*map(min, launching, lasts))
    return {"first": first, "whole": Timing(*map(max, first, whole))}
