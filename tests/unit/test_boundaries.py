"""Limits, exactly reached and exceeded by one."""

import pytest
from by_hand import ByHand, scheduler_of
from ticks import FastMillisecond

from testbed.core.request import Request
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate

SCHEDULERS = [SeparatePrefill, MixedPrefill, ChunkedPrefill]


@pytest.mark.parametrize("kind", [Paged, ContiguousMax])
def test_a_request_of_exactly_max_len_runs_and_one_token_more_is_rejected(kind):
    policy = kind(PoolSpec(512, 64), block_size=4)
    requests = [Request(0, 0, 60, 4), Request(1, 0, 60, 5)]
    recorder = simulate(requests, scheduler_of(SeparatePrefill, policy, Recompute()), FastMillisecond(), 64)
    assert (recorder.totals.finished, recorder.totals.generated) == (1, 4)
    assert recorder.rejections == {1: "65 tokens are more than the longest sequence of 64"}


@pytest.mark.parametrize("kind", [Paged, ContiguousMax])
def test_a_request_of_exactly_the_pool_runs_and_one_token_more_is_rejected(kind):
    policy = kind(PoolSpec(64, 64), block_size=4)
    requests = [Request(0, 0, 60, 4), Request(1, 0, 60, 5)]
    recorder = simulate(requests, scheduler_of(SeparatePrefill, policy, Recompute()), FastMillisecond(), 128)
    assert recorder.totals.finished == 1
    assert recorder.rejections.keys() == {1}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_as_many_sequences_as_the_limit_run_and_one_more_waits(kind):
    run = by_hand(kind, max_num_seqs=4)
    groups = [run.add(Request(i, 0, 8, 9, num_seqs=2)) for i in range(2)] + [run.add(Request(2, 0, 8, 9))]
    for _ in range(4):
        run.step()
    assert list(run.residents.running.values()) == groups[:2]
    assert list(run.residents.waiting) == groups[2:]


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_group_larger_than_the_limit_runs_alone(kind):
    policy = Paged(PoolSpec(512, 64), block_size=4)
    requests = [Request(0, 0, 8, 5), Request(1, 0, 8, 5, num_seqs=3), Request(2, 0, 8, 5)]
    scheduler = scheduler_of(kind, policy, Recompute(), max_num_seqs=2)
    recorder = simulate(requests, scheduler, FastMillisecond(), 64)
    spans = recorder.spans.columns()
    assert recorder.totals.finished == 3
    assert (spans["running"][spans["decode_seqs"] == 3] == 1).all()
    assert spans["decode_seqs"].max() == 3


def by_hand(kind, **limits):
    return ByHand(scheduler_of(kind, Paged(PoolSpec(512, 64), block_size=4), Recompute(), **limits))
