"""What static batches pay for: prompts and contexts as long as the longest of the batch."""

from ticks import OneMillisecond

from testbed.core.request import Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch
from testbed.sim.simulation import simulate

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, 512)
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)


class Listening(OneMillisecond):
    """Remembers what it was asked to price."""

    def __init__(self):
        self.works = []

    def iteration(self, work):
        self.works.append(work)
        return super().iteration(work)


def serve(requests, cost):
    scheduler = StaticBatch(ContiguousMax(PoolSpec(2048, 512)), Recompute(), max_batch_size=4, max_padded_len=512)
    return simulate(requests, scheduler, cost, 512)


def test_every_prompt_and_context_is_as_long_as_the_longest():
    cost = Listening()
    serve([Request(0, 0, 30, 2), Request(1, 0, 10, 3)], cost)
    assert [work.prefill for work in cost.works] == [((30, 0), (30, 0)), (), ()]
    assert [work.decode_context for work in cost.works] == [0, 2 * 31, 2 * 32]  # also of the one that has its output
    assert [work.decode_seqs for work in cost.works] == [0, 2, 2]
    assert [work.decode_longest for work in cost.works] == [0, 31, 32]


def test_a_padded_batch_takes_as_long_as_one_of_the_longest_request_alone_so_often():
    cost = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3))
    mixed = serve([Request(0, 0, 30, 2), Request(1, 0, 10, 9), Request(2, 0, 3, 1)], cost)
    equal = serve([Request(i, 0, 30, 9) for i in range(3)], cost)
    assert mixed.end_ps == equal.end_ps
