"""The margins of the 2023 system: its watermark, its free block for each sequence, its limit that counts groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.batch import Batch
from testbed.core.request import Request
from testbed.core.sequence import Sequence
from testbed.core.slots import GRANTED, Grant, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.mixed_2023 import Mixed2023
from testbed.sched.preemption import Recompute


def resident(policy, batch, request_id, num_tokens):
    seq = Sequence(request_id, Request(request_id, 0, num_tokens, 9).incoming)
    assert policy.admit([seq], num_tokens) == [GRANTED]
    seq.room = seq.stored = num_tokens
    batch.join(seq)
    return seq


@pytest.mark.parametrize(("kind", "free"), [(Paged, 2), (Paged2023, 1)])
def test_the_watermark_is_cut_to_whole_blocks(kind, free):
    """A share of 0.19 of 8 blocks are 1.52: after 5 blocks, a sixth leaves 2, a seventh 1 and an eighth none."""
    policy = kind(PoolSpec(32, 32), block_size=4, watermark=0.19)
    batch = Batch()
    resident(policy, batch, 0, 20)
    while policy.usage().free // 4 > free:
        resident(policy, batch, 8 - policy.usage().free // 4, 4)
    assert policy.admit([Sequence(99, Request(99, 0, 4, 9).incoming)], 4) is Refusal.LATER


@pytest.mark.parametrize(("kind", "answer"), [(Paged, Grant), (Paged2023, Refusal)])
def test_a_step_asks_for_a_free_block_for_each_sequence(kind, answer):
    """Two sequences with room in their last blocks need none, but the pool has none left either."""
    policy, batch = kind(PoolSpec(8, 8), block_size=4, watermark=0.0), Batch()
    for request_id in range(2):
        resident(policy, batch, request_id, 2)
    assert isinstance(policy.extend(batch, 1), answer)
    assert policy.horizon(batch) == (2 if kind is Paged else 0)


def test_a_sequence_that_is_alone_is_served_to_the_last_slot():
    policy, batch = Paged2023(PoolSpec(8, 8), block_size=4, watermark=0.0), Batch()
    resident(policy, batch, 0, 5)
    assert policy.horizon(batch) == 3
    for _ in range(3):  # no block is free, and none is needed
        assert isinstance(policy.extend(batch, 1), Grant)
        batch.extend(1)
    assert policy.extend(batch, 1) is Refusal.LATER


@given(st.integers(1, 3), st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 9))
def test_who_asks_last_finds_the_fewest_blocks_where_groups_are_even(width, lengths, num_steps):
    policy, batch = Paged2023(PoolSpec(4096, 64), block_size=4, watermark=0.0), Batch()
    for request_id, num_tokens in enumerate(lengths):
        for _ in range(width):
            seq = Sequence(len(batch), Request(request_id, 0, num_tokens, 9).incoming)
            assert policy.admit([seq], num_tokens) == [GRANTED]
            seq.room = seq.stored = num_tokens
            batch.join(seq)
    assert policy.horizon(batch) > 0
    index = batch.index(policy, None)
    assert index.is_even
    assert index.asked_last(num_steps) == index.asked(num_steps, ())


@pytest.mark.parametrize(("kind", "num_admitted"), [(MixedPrefill, 2), (Mixed2023, 3)])
def test_the_limit_counts_groups(kind, num_admitted):
    """Groups of two, at most four: two groups are four sequences, but with two groups a third adds only its two."""
    scheduler = kind(Paged(PoolSpec(1024, 64)), Recompute(), max_num_batched_tokens=100, max_num_seqs=4)
    for request_id in range(4):
        scheduler.add(Request(request_id, 0, 4, 9, num_seqs=2).incoming)
    scheduler.plan()
    assert len(scheduler.residents.running) == num_admitted
