"""A profile of the engine: a profile of this GPU whose sections without attention are measured on
the engine's layers.

`testbed gpu calibrate` measures layers in torch, operation by operation, and one kind of work at a
time. With --engine all layers of the real model run in sequence as in an iteration, fused and with
RoPE, the largest token counts first and without a pause: under load, at the clock that the power
limit allows, which the note records. Then whole iterations are served as graphs; their time beyond
the sum of all sections (transfers of arrays, late launches, kernels that wait for each other)
becomes a section: `launched_eager` for iterations with a prompt, whose attention is launched
between the graphs of two layers, and `launched_graph` for decodes, which run as one graph. Batches
are padded to the sizes of CUDA graphs (cuda_graph_sizes). Attention, moves and the other sections
are those of the profile that ships for this GPU, or are measured first where none ships.

On several GPUs layers are measured on one shard, alone, and whole iterations on all GPUs: their
time beyond layers and all-reduces is that of the control message, of the split embedding, of the
gathered logits, and of ranks that wait for each other.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel, Work
from testbed.cost.profile import Choices, ProfileCost
from testbed.kernels.engine.architecture import Architecture, of_spec
from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.graphs import BUCKETS
from testbed.kernels.engine.maths import FusedMaths
from testbed.kernels.engine.network import Network
from testbed.kernels.engine.parallel.leader import ALONE, Alone
from testbed.kernels.engine.parallel.processes import Source, start
from testbed.kernels.engine.parallel.shards import Shard
from testbed.kernels.engine.prompt_graphs import sizes_up_to
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.serve import Options, assemble
from testbed.kernels.engine.weights import Weights, random_weights
from testbed.kernels.measure.all_reduce import NO_DATA_SHEET
from testbed.kernels.measure.network_sections import embedding_points, head_points, layer_points
from testbed.kernels.measure.profile_sections import described, shipped, whole_profile
from testbed.kernels.measure.sweeps import Point, point, ragged_lens
from testbed.kernels.measure.timing import Timing, fingerprint, warm_up
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousOracle
from testbed.memory.layouts import ExtentLayout
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.oracles import with_lengths
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

CONTEXT, LONGEST, STEPS, SETTLING = 480, 1984, 64, 4
DECODES, VISITS, BLOCK = 16, 9, 16
SPARE_BYTES = 4 << 30  # for graphs and what products need
Kind = Callable[[PoolSpec], MemoryPolicy]


@dataclass(frozen=True)
class Bench:
    """A loaded model, or rank 0's part of one whose workers `lead` leads; and the options of its
    engines.
    """

    arch: Architecture
    weights: Weights
    options: Options
    lead: Alone = ALONE

    def pool(self, kind: Kind, requests: list[Request], num_seqs: int) -> PoolSpec:
        """A pool for num_seqs concurrent requests; it allows for buddy extents of twice their
        length.
        """
        lengths = sorted((request.final_len + BLOCK for request in requests), reverse=True)
        make = with_lengths(kind, MappingProxyType(dict[int, int]()))
        layout = capabilities_of(make(PoolSpec(BLOCK, BLOCK))).layout
        times = 2 if isinstance(layout, ExtentLayout) else 1
        return PoolSpec(times * sum(lengths[:num_seqs]) + lengths[0], lengths[0])

    def engine(self, kind: Kind, requests: list[Request], num_seqs: int) -> GpuEngine:
        """An engine for num_seqs concurrent requests."""
        outputs = dict[int, int]()
        make = with_lengths(kind, MappingProxyType(outputs))
        pool = self.pool(kind, requests, num_seqs)
        scheduler = MixedPrefill(
            make(pool), Recompute(), max_num_batched_tokens=2560, max_num_seqs=num_seqs
        )
        graphs = min(self.options.graphs, num_seqs)
        options = replace(self.options, graphs=graphs, lengths=outputs)
        return assemble(scheduler, pool, self.arch, self.weights, options, self.lead)


def free() -> None:
    """Free unreferenced memory, also on the GPU: an engine's parts reference each other, and GiBs
    of pools.
    """
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Exclude existing objects from garbage collection, whose pauses would add to measured
    times.
    """
    free()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def served_decodes(engine: GpuEngine, requests: list[Request]) -> list[Iteration]:
    """The iterations in which all sequences of the requests decode, after a warm-up."""
    with undisturbed():
        works = engine.serve(requests).iterations
    num_seqs = sum(request.num_seqs for request in requests)
    return [
        iteration
        for iteration in works
        if iteration.work.decode_seqs == num_seqs and not iteration.work.prefill
    ][SETTLING:]


def decodes_alone(bench: Bench, kind: Kind, batch: int) -> list[Iteration]:
    """Iterations in which `batch` sequences of ragged lengths decode, CONTEXT tokens on average."""
    requests = decoding(batch)
    free()
    return served_decodes(bench.engine(kind, requests, batch), requests)


def decoding(batch: int) -> list[Request]:
    """Requests of ragged lengths that decode together."""
    lengths = ragged_lens(batch, CONTEXT - STEPS // 2, LONGEST)
    return [Request(i, 0, length, STEPS) for i, length in enumerate(lengths)]


def has_room(pool: PoolSpec, spec: ModelSpec) -> bool:
    """Whether the GPU has memory for a pool, beside what is allocated and SPARE_BYTES."""
    free()
    left, _ = torch.cuda.mem_get_info()
    return pool.num_slots * spec.kv_bytes_per_token + SPARE_BYTES <= left


def prompts_with_decodes(
    bench: Bench, lengths: Iterable[int], cost: CostModel
) -> dict[int, list[Iteration]]:
    """Iterations with one prompt and DECODES decodes, by the prompt's length.

    Prompts arrive so that iterations with a prompt take half of the time, which gives the load and
    the clock of a busy server.
    """
    visitors, end_s = visits(list(lengths), cost)
    steps = int(end_s * PS / cost.iteration(Work(DECODES, DECODES * CONTEXT, CONTEXT))) + 1
    state = [Request(i, 0, CONTEXT, steps) for i in range(DECODES)]
    engine = bench.engine(Paged, [*state, *visitors], DECODES + 1)
    engine.serve([*state, *visitors])
    by_length: dict[int, list[Iteration]] = {length: [] for length in lengths}
    for iteration in engine.records.iterations:
        prefill = iteration.work.prefill
        if (
            iteration.work.decode_seqs == DECODES
            and len(prefill) == 1
            and prefill[0][1] == 0
            and prefill[0][0] in by_length
        ):
            by_length[prefill[0][0]].append(iteration)
    return by_length


def visits(lengths: list[int], cost: CostModel) -> tuple[list[Request], float]:
    """VISITS rounds of prompts with one output token each, and the time in s when the last has
    ended.
    """
    at_ps = 4 * cost.iteration(Work(prefill=((CONTEXT * DECODES, 0),)))  # the decodes run steadily
    requests: list[Request] = []
    for length in lengths * VISITS:
        requests.append(Request(DECODES + len(requests), at_ps, length, 1))
        at_ps += 2 * cost.iteration(
            Work(DECODES, DECODES * CONTEXT, CONTEXT, prefill=((length, 0),))
        )
    return requests, at_ps / PS


def beyond(iterations: list[Iteration], cost: CostModel) -> Timing:
    """Microseconds of GPU time beyond the cost model: median, and the 10th and 90th percentile."""
    if not iterations:
        raise InputError(
            "measured iterations: there are none (the pool or the model's max_len is too small)"
        )
    return Timing.of(
        [iteration.gpu_s * 1e6 - cost.iteration(iteration.work) / 1e6 for iteration in iterations]
    )


GRAPHS = [size for size in BUCKETS if size <= 128]
PROMPT_GRAPHS = 2048  # tokens
SIZES = sizes_up_to(PROMPT_GRAPHS)
TOKENS = (*SIZES, 2304, 2560, *range(2816, 4097, 256))
ROWS, EMBEDDED = (*GRAPHS, 192, 256), (1, 32, 128, 512, 2560)
PROMPTS, BATCHES = (8, 48, 112, 176, 240, 368, 496, 752, 1008, 2032), (1, 8, 16, 32, 64)
OPTIONS = Options(graphs=128, prompt_graphs=PROMPT_GRAPHS, warm=(64, 512, 2048))


def with_engine_sections(name: str, num_gpus: int = 1) -> dict[str, Any]:
    """The profile of a model on these GPUs with the engine's sections: the layers of a shard on one
    of them, and whole iterations on all.
    """
    free()
    spec = read_model(name)
    arch = of_spec(spec)
    profile = shipped(spec, num_gpus) or whole_profile(spec, num_gpus)
    free()
    network = network_of_shard(arch, num_gpus)
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
    profile["sections"] |= described(points, linear=note, output_head="norm, product, argmax")
    profile.pop("fit", None)  # of the replaced sections
    profile |= {"fingerprint": fingerprint(), "cuda_graph_sizes": SIZES}
    if num_gpus == 1:
        bench = Bench(arch, network.weights, OPTIONS)
        profile["sections"] |= described(launched_points(profile, spec, None, bench))
        return profile
    del network
    free()
    server = ServerSpec("measured", NO_DATA_SHEET, num_gpus)
    ranks = start(Source(arch, "random", 0, "cuda", "float16"), num_gpus)
    with closing(ranks.lead):
        bench = Bench(ranks.arch, ranks.weights, OPTIONS, ranks.lead)
        profile["sections"] |= described(launched_points(profile, spec, server, bench))
    return profile


def network_of_shard(arch: Architecture, num_gpus: int) -> Network:
    """Rank 0's layers, with its part of the vocabulary, as they compute without the others."""
    shard = Shard(arch, 0, num_gpus)
    weights = random_weights(arch, 0, "cuda", torch.float16, shard)
    local = replace(shard.local, spec=replace(shard.local.spec, vocab_size=shard.num_tokens))
    return Network(local, weights, FusedMaths())


def launched_points(
    profile: dict[str, Any], spec: ModelSpec, server: ServerSpec | None, bench: Bench
) -> dict[str, list[Point]]:
    """Time of whole iterations beyond the profile's other sections, with a prompt and of decodes
    alone: on several GPUs also that of the message, of split embeddings and of gathered logits.
    """

    def kernels(kernel: str, spread: str) -> CostModel:
        choices = Choices(kernel=kernel, spread=spread, overhead_s=0.0)
        return ProfileCost(spec, server, profile, choices)

    cost = kernels("paged", "equal")
    served = prompts_with_decodes(bench, PROMPTS, cost)
    eager = [
        point(length + DECODES, timing=beyond(iterations, cost))
        for length, iterations in served.items()
    ]
    graph = []
    for kernel, kind in (("paged", Paged), ("contiguous", ContiguousOracle)):
        cost = kernels(kernel, "ragged")
        for batch in BATCHES:
            requests = decoding(batch)
            if not has_room(bench.pool(kind, requests, batch), bench.arch.spec):
                print(f"{kernel}: no room for {batch} sequences, whose launch takes that of fewer")
                break
            iterations = decodes_alone(bench, kind, batch)
            graph.append(point(kernel, batch, timing=beyond(iterations, cost)))
    return {"launched_eager": eager, "launched_graph": graph}
