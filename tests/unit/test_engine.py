"""What the engine and the schedulers do under pressure, on runs small enough to reason about."""

import pytest
from by_hand import scheduler_of
from ticks import MS, OneMillisecond

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import Affine
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch
from testbed.sim.simulation import simulate

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, 512)
SERVER = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
COST = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3))


def served(recorder):
    columns = recorder.requests.columns()
    return dict(zip(columns["request_id"].tolist(), columns["finish_ps"].tolist(), strict=True))


@pytest.mark.parametrize("prefill", [SeparatePrefill, MixedPrefill, ChunkedPrefill])
@pytest.mark.parametrize("preemption", [Recompute, Swap])
def test_overload_finishes_everybody(prefill, preemption):
    policy = Paged(PoolSpec(160, 512, host(200)), block_size=4)
    requests = [Request(i, 0, 30, 60, num_seqs=1 + i % 2) for i in range(40)]
    recorder = simulate(requests, scheduler_of(prefill, policy, preemption(), max_num_batched_tokens=64), COST, 512)
    assert recorder.totals.finished == 40
    assert recorder.totals.recomputes + recorder.totals.swaps > 10
    assert policy.usage().live == 0


def test_a_full_host_pool_falls_back_to_recompute():
    policy = Paged(PoolSpec(160, 512), block_size=4)
    recorder = simulate(
        [Request(i, 0, 30, 60) for i in range(10)], scheduler_of(SeparatePrefill, policy, Swap()), COST, 512
    )
    assert recorder.totals.swaps == 0
    assert recorder.totals.recomputes > 0
    assert recorder.totals.finished == 10


def test_what_could_never_run_is_turned_away_at_arrival_and_blocks_nobody():
    policy = Paged(PoolSpec(160, 512), block_size=4)
    requests = [Request(0, 0, 600, 1), Request(1, 0, 100, 100), Request(2, 0, 10, 10)]
    recorder = simulate(requests, scheduler_of(SeparatePrefill, policy, Recompute()), COST, 512)
    assert "longest sequence of 512" in recorder.rejections[0]
    assert "do not fit the empty pool" in recorder.rejections[1]
    assert recorder.totals.finished == 1


def test_the_watermark_is_waived_when_nothing_runs():
    policy = Paged(PoolSpec(160, 512), block_size=4, watermark=0.5)
    recorder = simulate([Request(0, 0, 150, 5)], scheduler_of(SeparatePrefill, policy, Recompute()), COST, 512)
    assert recorder.totals.finished == 1


@pytest.mark.parametrize("prefill", [SeparatePrefill, MixedPrefill])
def test_a_prompt_larger_than_the_token_budget_runs_alone(prefill):
    policy = ContiguousOracle(PoolSpec(2048, 512))
    requests = [Request(0, 0, 10, 50), Request(1, 0, 300, 5), Request(2, 0, 10, 5)]
    recorder = simulate(requests, scheduler_of(prefill, policy, Recompute(), max_num_batched_tokens=32), COST, 512)
    spans = recorder.spans.columns()
    alone = spans["prefill_tokens"] == 300
    assert alone.sum() == 1
    assert spans["decode_seqs"][alone].tolist() == [0]
    assert recorder.totals.finished == 3


def test_chunks_keep_to_the_token_budget():
    policy = Paged(PoolSpec(2048, 512))
    scheduler = scheduler_of(ChunkedPrefill, policy, Recompute(), max_num_batched_tokens=32)
    recorder = simulate([Request(0, 0, 10, 50), Request(1, 0, 300, 5)], scheduler, COST, 512)
    spans = recorder.spans.columns()
    assert (spans["prefill_tokens"] + spans["decode_seqs"]).max() == 32
    assert spans["prefill_tokens"].sum() == 310


def test_a_static_batch_is_answered_at_once_after_its_longest_output():
    policy = ContiguousMax(PoolSpec(2048, 512))
    requests = [Request(0, 0, 10, 5), Request(1, 0, 20, 40), Request(2, 0, 10, 2)]
    recorder = simulate(
        requests, StaticBatch(policy, Recompute(), max_batch_size=2, max_padded_len=512), OneMillisecond(), 512
    )
    finish = served(recorder)
    assert finish[0] == finish[1] == 40 * MS
    assert finish[2] == 42 * MS


def test_a_static_batch_ends_before_padding_exceeds_the_longest_sequence():
    policy = ContiguousMax(PoolSpec(2048, 512))
    requests = [Request(0, 0, 200, 5), Request(1, 0, 10, 300), Request(2, 0, 10, 313), Request(3, 0, 490, 10)]
    scheduler = StaticBatch(policy, Recompute(), max_batch_size=4, max_padded_len=512)
    finish = served(simulate(requests, scheduler, OneMillisecond(), 512))
    assert finish[0] == finish[1] == 300 * MS  # 200 + 313 would be 513
    assert finish[2] == (300 + 313) * MS  # alone: 490 + 313 are more than 512
    assert finish[3] == (300 + 313 + 10) * MS


def test_a_cost_model_that_only_prices_iterations_is_right_before_it_is_fast():
    policy = Paged(PoolSpec(2048, 512))
    recorder = simulate(
        [Request(0, 0, 10, 30)], scheduler_of(SeparatePrefill, policy, Recompute()), OneMillisecond(), 512
    )
    assert recorder.end_ps == 30 * MS
    assert len(recorder.spans) == recorder.totals.iterations == 30


def test_a_policy_that_refuses_though_nothing_runs_is_named():
    class Stubborn(Paged):
        def _make_room(self, needed, reserve=0):
            return False

    scheduler = scheduler_of(SeparatePrefill, Stubborn(PoolSpec(512, 512)), Recompute())
    with pytest.raises(PlugInError, match=r"Stubborn refuses request 0 \(10 tokens\) though nothing runs"):
        simulate([Request(0, 0, 10, 3)], scheduler, COST, 512)


@pytest.mark.parametrize("growth", [0, 1, 7])
def test_steps_to_reach_is_the_least_number(growth):
    prices = Affine(10, growth, 1000)
    for elapsed in range(1, 400):
        steps = prices.steps_to_reach(elapsed)
        assert prices.total_ps(steps) >= elapsed > prices.total_ps(steps - 1)
