"""What the GPU takes for whole iterations of the engine, beyond what a profile says of their kernels one by one.

Requests are served as always: decodes as graphs, prompts kernel by kernel. So everything between the first and the last
work of an iteration is in it: arrays brought over, launches that come late, kernels that wait for each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from kernels.engine.architecture import Architecture
from kernels.engine.assemble import Options, assemble
from kernels.engine.gpu_engine import Engine
from kernels.engine.records import Iteration
from kernels.engine.weights import Weights
from kernels.measure.sweeps import ragged_lens
from kernels.measure.timing import Timing
from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.cost.model import CostModel, Work
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
    """A model that is there, and how engines run it."""

    arch: Architecture
    weights: Weights
    options: Options

    def engine(self, kind: Kind, requests: list[Request], num_seqs: int) -> Engine:
        """An engine for so many requests at a time, each in an extent of up to twice its length (buddies are)."""
        lengths = sorted((request.final_len + BLOCK for request in requests), reverse=True)
        pool = PoolSpec(2 * sum(lengths[:num_seqs]), lengths[0])
        scheduler = MixedPrefill(kind(pool), Recompute(), max_num_batched_tokens=2560, max_num_seqs=num_seqs)
        options = replace(self.options, graphs=min(self.options.graphs, num_seqs))
        return assemble(scheduler, pool, self.arch, self.weights, options)


def decodes_alone(bench: Bench, kind: Kind, batch: int) -> list[Iteration]:
    """Iterations in which `batch` sequences of ragged lengths decode, CONTEXT tokens on average."""
    lengths = ragged_lens(batch, CONTEXT - STEPS // 2, LONGEST)
    requests = [Request(i, 0, length, STEPS) for i, length in enumerate(lengths)]
    engine = bench.engine(kind, requests, batch)
    engine.serve(requests)
    works = engine.records.iterations
    return [one for one in works if one.work.decode_seqs == batch and not one.work.prefill][SETTLING:]


def prompts_beside_decodes(bench: Bench, lengths: Iterable[int], price: CostModel) -> dict[int, list[Iteration]]:
    """Iterations with one prompt beside DECODES decodes, by the prompt's length.

    A prompt comes when the one before has been gone for as long as it took, so that half of the time is theirs: a busy
    server's load, and its clock.
    """
    visitors, end_s = visits(list(lengths), price)
    steps = int(end_s * PS / price.iteration(Work(DECODES, DECODES * CONTEXT, CONTEXT))) + 1
    residents = [Request(i, 0, CONTEXT, steps) for i in range(DECODES)]
    engine = bench.engine(Paged, [*residents, *visitors], DECODES + 1)
    engine.serve([*residents, *visitors])
    found: dict[int, list[Iteration]] = {length: [] for length in lengths}
    for one in engine.records.iterations:
        prefill = one.work.prefill
        if one.work.decode_seqs == DECODES and len(prefill) == 1 and prefill[0][1] == 0 and prefill[0][0] in found:
            found[prefill[0][0]].append(one)
    return found


def visits(lengths: list[int], price: CostModel) -> tuple[list[Request], float]:
    """VISITS rounds of prompts with one output token each, and the second when the last has gone."""
    at_ps = 4 * price.iteration(Work(prefill=((CONTEXT * DECODES, 0),)))  # residents are there, and settled
    requests: list[Request] = []
    for length in lengths * VISITS:
        requests.append(Request(DECODES + len(requests), at_ps, length, 1))
        at_ps += 2 * price.iteration(Work(DECODES, DECODES * CONTEXT, CONTEXT, prefill=((length, 0),)))
    return requests, at_ps / PS


def beyond(iterations: list[Iteration], price: CostModel) -> Timing:
    """Microseconds of GPU time beyond the price: median, and the 10th and 90th percentile."""
    if not iterations:
        raise InputError("no iteration is of the kind that is measured: the pool or the model's max_len is too small")
    extra = [one.gpu_s * 1e6 - price.iteration(one.work) / 1e6 for one in iterations]
    return Timing(float(np.median(extra)), *(float(x) for x in np.percentile(extra, [10, 90])))
