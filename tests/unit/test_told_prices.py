"""What is told beside a profile: software by sequence, fork and input, and what tensor parallelism adds to a layer."""

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import PS, Rows, Workload
from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec
from testbed.cost.model import CostModel, Work
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.beams import BeamModel
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import RecomputeSingleSwapGroup
from testbed.sim.simulation import simulate

PROFILE = read_profile("h200-opt-66b-tp4")
MODEL = ModelSpec(**PROFILE["model"])
SERVER = ServerSpec("four", GpuSpec("h200", 140 * GIB, 4.8e12, 989e12, 55e9, 450e9), 4)


def price(work, server=SERVER, **choices):
    return ProfileCost(MODEL, server, PROFILE, Choices(overhead_s=0.0, **choices)).iteration(work)


def added(work, **choices):
    return price(work, **choices) - price(work)


def test_sequences_forks_and_inputs_cost_what_is_told():
    beam = Work(6, 600, 100, prefill=((50, 0),), num_requests=2, forks=3)
    assert added(beam, overhead_per_sequence_s=1e-6) == 7 * PS // 10**6
    assert added(beam, overhead_per_sequence_s=1e-6, sequences_per_fork=2.0) == (7 + 3 * 2) * PS // 10**6
    assert added(beam, overhead_per_worker_s=1e-6) == 4 * PS // 10**6
    assert added(beam, overhead_per_input_s=1e-6) == 4 * 2 * PS // 10**6  # four workers


def test_a_layer_on_several_gpus_takes_longer():
    told = {2: 1e-6, 4: 5e-6}
    for work in (Work(8, 800, 100), Work(prefill=((900, 0),))):
        assert added(work, parallel_layer_s=told) == MODEL.num_layers * 5 * PS // 10**6
        assert price(work, server=None, parallel_layer_s=told) == price(work, server=None)  # a shard by itself
    assert added(Work(), parallel_layer_s=told) == 0
    with pytest.raises(InputError, match=r"says nothing of 4 GPUs \(it knows 2, 8\)"):
        price(Work(), parallel_layer_s={2: 1e-6, 8: 1e-6})


def test_a_span_counts_all_of_it():
    cost = ProfileCost(MODEL, SERVER, PROFILE, Choices(overhead_per_sequence_s=1e-6, parallel_layer_s={4: 1e-6}))
    work = Work(8, 800, 100, num_requests=8)
    assert cost.decode(work).first_ps == cost.iteration(work)


class Forks(CostModel):
    """Every iteration takes a second; keeps how many forks each was told of."""

    def __init__(self):
        self.seen = []

    def iteration(self, work):
        self.seen.append(work.forks)
        return PS


class Replaces(BeamModel):
    """The first candidate takes the place of the second at every step."""

    def parents(self, request, num_generated):
        return ((0, 1),)


@pytest.mark.parametrize("beam", [False, True])
def test_forks_are_counted_once_in_the_iteration_after_them(beam):
    cost = Forks()
    scheduler = MixedPrefill(
        Paged(PoolSpec(4096, 128)), RecomputeSingleSwapGroup(), max_num_batched_tokens=64, max_num_seqs=8
    )
    rows = Rows(np.array([5]), np.array([4]))
    simulate(Workload(rows, np.array([0]), 3, beam), scheduler, cost, 128, beams=Replaces())
    assert cost.seen == ([0, 2, 1, 1] if beam else [0, 2, 0, 0])
