"""A loaded model whose engines serve what is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from testbed.core.specs import ModelSpec
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.device_memory import free
from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.parallel.leader import ALONE, Alone
from testbed.kernels.engine.phases import Phase, in_phases
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.served_run import Options, assemble
from testbed.kernels.engine.weights import Weights
from testbed.memory.capabilities import capabilities_of
from testbed.memory.layouts import ExtentLayout
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.run.oracles import with_lengths
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.scheduler import Scheduler
from testbed.sched.vllm_v1 import AsyncVllmV1

BLOCK, MOST_TOKENS = 16, 2560  # of an iteration
SPARE_BYTES = 4 << 30  # for graphs and what products need
Kind = Callable[[PoolSpec], MemoryPolicy]
Planning = Callable[[MemoryPolicy, int], Scheduler]  # by the policy and the most sequences


def in_turn(policy: MemoryPolicy, num_seqs: int) -> Scheduler:
    """Plans an iteration when the results of the one before are in."""
    return MixedPrefill(
        policy, Recompute(), max_num_batched_tokens=MOST_TOKENS, max_num_seqs=num_seqs
    )


def ahead(policy: MemoryPolicy, num_seqs: int) -> Scheduler:
    """Plans an iteration, and so launches it, while the one before is computed."""
    return AsyncVllmV1(
        policy,
        Recompute(),
        ignore_eos=True,
        max_num_batched_tokens=MOST_TOKENS,
        max_num_seqs=num_seqs,
        long_prefill_token_threshold=0,
        scheduler_reserve_full_isl=True,
    )


@dataclass(frozen=True)
class Bench:
    """A loaded model, or rank 0's part of one whose workers `lead` leads; and the options of its
    engines.
    """

    arch: Architecture
    weights: Weights
    options: Options
    lead: Alone = ALONE

    def pool(self, kind: Kind, phases: Sequence[Phase], num_seqs: int) -> PoolSpec:
        """A pool for the phases, of which one is served at a time, each with at most num_seqs
        concurrent requests; it allows for buddy extents of twice their length.
        """
        make = with_lengths(kind, MappingProxyType(dict[int, int]()))
        layout = capabilities_of(make(PoolSpec(BLOCK, BLOCK))).layout
        times = 2 if isinstance(layout, ExtentLayout) else 1
        lengths_of = [
            sorted((request.final_len + BLOCK for request in phase.requests), reverse=True)
            for phase in phases
        ]
        longest = max(lengths[0] for lengths in lengths_of)
        most_at_once = max(sum(lengths[:num_seqs]) for lengths in lengths_of)
        return PoolSpec(times * most_at_once + longest, longest)

    def engine(
        self, kind: Kind, planning: Planning, phases: Sequence[Phase], num_seqs: int
    ) -> GpuEngine:
        """An engine for these phases; num_seqs: as in `pool`."""
        outputs = dict[int, int]()
        make = with_lengths(kind, MappingProxyType(outputs))
        pool = self.pool(kind, phases, num_seqs)
        graphs = min(self.options.graphs, num_seqs)
        options = replace(self.options, graphs=graphs, lengths=outputs)
        scheduler = planning(make(pool), num_seqs)
        return assemble(scheduler, pool, self.arch, self.weights, options, self.lead)

    def has_room(self, kind: Kind, phases: Sequence[Phase], num_seqs: int) -> bool:
        """True if the device has memory for their pool, beside what is allocated and SPARE_BYTES;
        a CPU always has.
        """
        if not self.weights.embedding.is_cuda:
            return True
        free()
        left, _ = torch.cuda.mem_get_info()
        return _bytes(self.pool(kind, phases, num_seqs), self.arch.spec) + SPARE_BYTES <= left

    def served(
        self, kind: Kind, planning: Planning, phases: Sequence[Phase], num_seqs: int
    ) -> list[list[Iteration]]:
        """The iterations of each phase, by an engine that serves num_seqs requests at once."""
        free()
        return in_phases(self.engine(kind, planning, phases, num_seqs), phases)


def _bytes(pool: PoolSpec, spec: ModelSpec) -> int:
    return pool.num_slots * spec.kv_bytes_per_token
