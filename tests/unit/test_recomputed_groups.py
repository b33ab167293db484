"""Groups of several sequences that come back after recompute: what is computed, shared, refused and published."""

import copy

import pytest

from testbed.core.request import Request
from testbed.core.sequence import Sequence
from testbed.core.slots import Refusal
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.plan import Plan
from testbed.sched.preemption import Recompute
from testbed.sched.prefill import ChunkedPrefill, MixedPrefill, SeparatePrefill

POOL = PoolSpec(num_slots=64, max_len=64)
TEXT = tuple(range(100, 110))


def paged(kind=Paged):
    return kind(POOL, block_size=4, watermark=0)


def preempted(scheduler, prompt_len=10, num_seqs=3, num_generated=5):
    """A group that has some output and has lost its room."""
    request = Request(0, 0, prompt_len, 20, num_seqs=num_seqs, prompt_ids=TEXT[:prompt_len])
    group = scheduler.add(request)
    while group.num_generated + (scheduler.batch.steps - group.joined_at) < num_generated:
        step(scheduler)
    scheduler.preempt(Plan())
    return group


def step(scheduler):
    plan = scheduler.plan()
    scheduler.commit(plan, 1)
    return plan


def chunks(plan):
    return [(chunk.new, chunk.stored) for chunk in plan.chunks]


@pytest.mark.parametrize("prefill", [SeparatePrefill, MixedPrefill, ChunkedPrefill])
def test_whole_blocks_of_the_prompt_are_computed_once_and_nothing_is_copied(prefill):
    scheduler = prefill(paged(), Recompute())
    group = preempted(scheduler)
    plan = step(scheduler)
    assert chunks(plan) == [(15, 0), (7, 8), (7, 8)]
    assert not plan.ops
    first, second, third = ([extent.start for extent in scheduler.policy.table(seq)] for seq in group.sequences)
    assert first[:2] == second[:2] == third[:2]
    assert len({*first[2:], *second[2:], *third[2:]}) == 6


def test_a_prompt_without_a_whole_block_is_computed_by_everybody():
    scheduler = SeparatePrefill(paged(), Recompute())
    preempted(scheduler, prompt_len=3)
    assert chunks(step(scheduler)) == [(8, 0), (8, 0), (8, 0)]


def test_a_policy_that_does_not_share_recomputes_every_sequence():
    scheduler = SeparatePrefill(ContiguousMax(PoolSpec(256, 64)), Recompute())
    preempted(scheduler)
    assert chunks(step(scheduler)) == [(15, 0)] * 3


def test_what_one_iteration_cannot_compute_follows_sequence_by_sequence():
    scheduler = SeparatePrefill(paged(), Recompute(), max_num_batched_tokens=16)
    group = preempted(scheduler)
    plans = [step(scheduler) for _ in range(3)]
    assert [chunks(plan) for plan in plans] == [[(15, 0)], [(7, 8), (7, 8)], []]
    assert plans[2].decode_seqs == 3
    assert group.num_generated == 6


def test_chunks_go_from_one_sequence_to_the_next():
    scheduler = ChunkedPrefill(paged(), Recompute(), max_num_batched_tokens=9)
    preempted(scheduler)
    assert [chunks(step(scheduler)) for _ in range(4)] == [[(9, 0)], [(6, 9), (3, 8)], [(4, 11), (5, 8)], [(2, 13)]]


def test_what_was_not_computed_before_another_preemption_is_not_found():
    policy = paged(PrefixCaching)
    scheduler = ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=6)
    preempted(scheduler)
    crowd_out(policy)
    assert chunks(step(scheduler)) == [(6, 0)]
    scheduler.preempt(Plan())
    assert policy.usage().cached == 0
    assert [chunks(step(scheduler)) for _ in range(2)] == [[(6, 0)], [(6, 6)]]


def test_the_first_sequence_is_found_after_another_preemption_once_it_is_computed():
    policy = paged(PrefixCaching)
    scheduler = ChunkedPrefill(policy, Recompute(), max_num_batched_tokens=16)
    preempted(scheduler)
    crowd_out(policy)
    assert chunks(step(scheduler)) == [(15, 0), (1, 8)]
    scheduler.preempt(Plan())
    assert policy.usage().cached == 8


def crowd_out(policy):
    """Another sequence takes the whole pool and leaves."""
    other = Sequence(99, Request(99, 0, 64, 1))
    policy.admit(other, 64)
    policy.release(other)


@pytest.mark.parametrize("num_others", [8, 9, 10, 11, 12])
def test_a_refused_return_leaves_the_prefix_cache_as_it_was(num_others):
    policy = paged(PrefixCaching)
    scheduler = SeparatePrefill(policy, Recompute())
    story = Sequence(98, Request(98, 0, 8, 1, prompt_ids=tuple(range(8))))
    policy.admit(story, 8)
    group = preempted(scheduler)
    policy.release(story)
    policy.admit(Sequence(99, Request(99, 0, 64, 1)), 4 * num_others)
    before = state(policy)
    refused = policy.admit_all(group.sequences, 15) is Refusal.LATER
    assert refused == (num_others > 8)  # 2 + 3 * 2 blocks of 16 are asked for
    assert (state(policy) == before) == refused
    policy.check()


def state(policy):
    """What can be found, and the order in which it will be evicted."""
    pool = copy.deepcopy(policy)._pool
    hits = [node.hits for node in pool.index.holder if node]
    return policy.usage(), policy.evictions, hits, [pool.order.victim().block for _ in range(pool.num_parked)]
