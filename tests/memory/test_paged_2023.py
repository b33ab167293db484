"""The margins of the 2023 system: its watermark, its free block for each sequence, its limit that counts groups."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.core.request import Request
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import GRANTED, Grant, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import Mixed2023, MixedPrefill
from testbed.sched.preemption import Recompute


def resident(policy, batch, request_id, num_tokens):
    seq = Sequence(request_id, Request(request_id, 0, num_tokens, 9).incoming)
    assert policy.admit([seq], num_tokens) == [GRANTED]
    seq.num_slots = seq.num_stored = num_tokens
    batch.add(seq)
    return seq


@pytest.mark.parametrize(("kind", "free"), [(Paged, 2), (Paged2023, 1)])
def test_watermark_is_rounded_down_to_whole_blocks(kind, free):
    """A share of 0.19 of 8 blocks are 1.52: after 5 blocks, a sixth leaves 2, a seventh 1 and an eighth none."""
    policy = kind(PoolSpec(32, 32), block_size=4, watermark=0.19)
    batch = Batch()
    resident(policy, batch, 0, 20)
    while policy.usage().free // 4 > free:
        resident(policy, batch, 8 - policy.usage().free // 4, 4)
    assert policy.admit([Sequence(99, Request(99, 0, 4, 9).incoming)], 4) is Refusal.LATER


@pytest.mark.parametrize(("kind", "answer"), [(Paged, Grant), (Paged2023, Refusal)])
def test_step_needs_a_free_block_for_each_sequence(kind, answer):
    """Two sequences with free slots in their last blocks need none, but the pool has none left either."""
    policy, batch = kind(PoolSpec(8, 8), block_size=4, watermark=0.0), Batch()
    for request_id in range(2):
        resident(policy, batch, request_id, 2)
    assert isinstance(policy.extend(batch, 1), answer)
    assert policy.guaranteed_steps(batch) == (2 if kind is Paged else 0)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), min_size=1, max_size=4),
    st.integers(0, 12), st.integers(1, 12),
)  # fmt: skip
@example([(4, 4), (2, 4)], 3, 3)  # of 9 blocks of 4 six are held: the first step takes 6 of 3
@example([(4, 4), (2, 4)], 8, 3)  # six are taken, and then the four ask for four more though 2 are left
def test_many_steps_at_once_are_granted_exactly_where_single_steps_are(groups, spare, num_steps):
    needed = sum(width * -(-num_tokens // 4) for width, num_tokens in groups)
    policies = [Paged2023(PoolSpec(4 * (needed + spare), 64), block_size=4, watermark=0.0) for _ in range(2)]
    batches = [Batch(), Batch()]
    for policy, batch in zip(policies, batches, strict=True):
        for request_id, (width, num_tokens) in enumerate(groups):
            for _ in range(width):
                seq = Sequence(len(batch), Request(request_id, 0, num_tokens, 9).incoming)
                assert policy.admit([seq], num_tokens) == [GRANTED]
                seq.num_slots = seq.num_stored = num_tokens
                batch.add(seq)
    at_once = policies[0].extend(batches[0], num_steps)
    for _ in range(num_steps):
        answer = policies[1].extend(batches[1], 1)
        if isinstance(answer, Refusal):
            break
        batches[1].extend(1)
    assert isinstance(at_once, Refusal) == isinstance(answer, Refusal)


@pytest.mark.parametrize(("kind", "num_admitted"), [(MixedPrefill, 2), (Mixed2023, 3)])
def test_max_num_seqs_counts_groups(kind, num_admitted):
    """Groups of two, at most four: two groups are four sequences, but with two groups a third adds only its two."""
    scheduler = kind(Paged(PoolSpec(1024, 64)), Recompute(), max_num_batched_tokens=100, max_num_seqs=4)
    for request_id in range(4):
        scheduler.add(Request(request_id, 0, 4, 9, num_seqs=2).incoming)
    scheduler.plan()
    assert len(scheduler.state.running) == num_admitted
