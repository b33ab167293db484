"""Groups of several sequences that come back after recompute: what is computed, shared, refused and published."""

import pytest
from manual_driver import ManualDriver, admit_and_prefill, release, scheduler_of, sequence

from testbed.core.request import Request
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill

POOL = PoolSpec(num_slots=64, max_len=64)
TEXT = tuple(range(100, 110))


def paged(kind=Paged):
    return kind(POOL, block_size=4, watermark=0)


def driver(kind, policy, **limits):
    return ManualDriver(scheduler_of(kind, policy, Recompute(), **limits))


def preempted(run, prompt_len=10, num_seqs=3, num_generated=5):
    """A group that has some output and has lost its slots."""
    group = run.add(Request(0, 0, prompt_len, 20, num_seqs=num_seqs, prompt_ids=TEXT[:prompt_len]))
    while group.num_generated < num_generated:
        run.step()
    run.preempt()
    return group


def step(run):
    return run.step()[0]


def chunks(plan):
    return [(chunk.new, chunk.num_stored) for chunk in plan.chunks]


@pytest.mark.parametrize("prefill", [SeparatePrefill, MixedPrefill, ChunkedPrefill])
def test_group_recompute_computes_shared_blocks_once(prefill):
    run = driver(prefill, paged())
    group = preempted(run)
    plan = step(run)
    assert chunks(plan) == [(15, 0), (7, 8), (7, 8)]
    assert not plan.ops
    first, second, third = ([extent.start for extent in run.policy.table(seq)] for seq in group.sequences)
    assert first[:2] == second[:2] == third[:2]
    assert len({*first[2:], *second[2:], *third[2:]}) == 6


def test_group_recompute_continues_over_iterations():
    run = driver(SeparatePrefill, paged(), max_num_batched_tokens=16)
    group = preempted(run)
    plans = [step(run) for _ in range(3)]
    assert [chunks(plan) for plan in plans] == [[(15, 0)], [(7, 8), (7, 8)], []]
    assert plans[2].decode_seqs == 3
    assert group.num_generated == 7


def test_only_stored_blocks_are_hit_after_repeated_preemption():
    policy = paged(PrefixCaching)
    run = driver(ChunkedPrefill, policy, max_num_batched_tokens=6)
    preempted(run)
    crowd_out(policy)
    assert chunks(step(run)) == [(6, 0)]
    run.preempt()
    assert policy.usage().cached == 4  # one whole block
    assert [chunks(step(run)) for _ in range(2)] == [[(6, 4)], [(5, 10), (1, 8)]]


def crowd_out(policy):
    """Another sequence takes the whole pool and leaves."""
    other = sequence(99, 64)
    admit_and_prefill(policy, [other], 64)
    release(policy, other)
