"""GPU time of whole iterations of the engine, beyond the time that a profile has for their kernels.

Requests are served normally: decodes as graphs, prompts eagerly. The time of an iteration thus includes all work
between its first and last kernel: transfers of arrays, late launches, kernels that wait for each other.
"""

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.cost.model import CostModel, Work
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.gpu_engine import Engine
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.serve import Options, assemble
from testbed.kernels.engine.weights import Weights
from testbed.kernels.measure.sweeps import ragged_lens
from testbed.kernels.measure.timing import Timing
from testbed.memory.contiguous.contiguous import Contiguous
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

CONTEXT, LONGEST, STEPS, SETTLING = 480, 1984, 64, 4
DECODES, VISITS = 16, 9
BLOCK = 16
Kind = Callable[[PoolSpec], MemoryPolicy]


@dataclass(frozen=True)
class Bench:
    """A loaded model, and the options of its engines."""

    arch: Architecture
    weights: Weights
    options: Options

    def engine(self, kind: Kind, requests: list[Request], num_seqs: int) -> Engine:
        """An engine for num_seqs concurrent requests; the pool allows for buddy extents of twice their length."""
        lengths = sorted((request.final_len + BLOCK for request in requests), reverse=True)
        times = 2 if isinstance(kind, type) and issubclass(kind, Contiguous) else 1
        pool = PoolSpec(times * sum(lengths[:num_seqs]) + lengths[0], lengths[0])
        scheduler = MixedPrefill(kind(pool), Recompute(), max_num_batched_tokens=2560, max_num_seqs=num_seqs)
        options = replace(self.options, graphs=min(self.options.graphs, num_seqs))
        return assemble(scheduler, pool, self.arch, self.weights, options)


def free() -> None:
    """Free unreferenced memory, also on the GPU: an engine's parts reference each other, and GiBs of pools."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Exclude existing objects from garbage collection, whose pauses would add to measured times."""
    free()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def median_us(iterations: list[Iteration], name: str) -> float:
    """The median of one of the iterations' times."""
    return 1e6 * float(statistics.median(getattr(one, name) for one in iterations))


def served_decodes(engine: Engine, requests: list[Request]) -> list[Iteration]:
    """The iterations in which all sequences of the requests decode, after a warm-up."""
    with undisturbed():
        works = engine.serve(requests).iterations
    num_seqs = sum(request.num_seqs for request in requests)
    return [one for one in works if one.work.decode_seqs == num_seqs and not one.work.prefill][SETTLING:]


def decodes_alone(bench: Bench, kind: Kind, batch: int) -> list[Iteration]:
    """Iterations in which `batch` sequences of ragged lengths decode, CONTEXT tokens on average."""
    lengths = ragged_lens(batch, CONTEXT - STEPS // 2, LONGEST)
    requests = [Request(i, 0, length, STEPS) for i, length in enumerate(lengths)]
    free()
    return served_decodes(bench.engine(kind, requests, batch), requests)


def prompts_with_decodes(bench: Bench, lengths: Iterable[int], cost: CostModel) -> dict[int, list[Iteration]]:
    """Iterations with one prompt and DECODES decodes, by the prompt's length.

    Prompts arrive so that iterations with a prompt take half of the time, which gives the load and the clock of a busy
    server.
    """
    visitors, end_s = visits(list(lengths), cost)
    steps = int(end_s * PS / cost.iteration(Work(DECODES, DECODES * CONTEXT, CONTEXT))) + 1
    state = [Request(i, 0, CONTEXT, steps) for i in range(DECODES)]
    engine = bench.engine(Paged, [*state, *visitors], DECODES + 1)
    engine.serve([*state, *visitors])
    found: dict[int, list[Iteration]] = {length: [] for length in lengths}
    for one in engine.records.iterations:
        prefill = one.work.prefill
        if one.work.decode_seqs == DECODES and len(prefill) == 1 and prefill[0][1] == 0 and prefill[0][0] in found:
            found[prefill[0][0]].append(one)
    return found


def visits(lengths: list[int], cost: CostModel) -> tuple[list[Request], float]:
    """VISITS rounds of prompts with one output token each, and the time in s when the last has ended."""
    at_ps = 4 * cost.iteration(Work(prefill=((CONTEXT * DECODES, 0),)))  # the decodes run steadily
    requests: list[Request] = []
    for length in lengths * VISITS:
        requests.append(Request(DECODES + len(requests), at_ps, length, 1))
        at_ps += 2 * cost.iteration(Work(DECODES, DECODES * CONTEXT, CONTEXT, prefill=((length, 0),)))
    return requests, at_ps / PS


def beyond(iterations: list[Iteration], cost: CostModel) -> Timing:
    """Microseconds of GPU time beyond the cost model: median, and the 10th and 90th percentile."""
    if not iterations:
        raise InputError("measured iterations: there are none (the pool or the model's max_len is too small)")
    return Timing.of([one.gpu_s * 1e6 - cost.iteration(one.work) / 1e6 for one in iterations])
