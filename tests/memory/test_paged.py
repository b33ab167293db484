"""Blocks that are taken, shared, promised and given back: counted by hand on pools of a few blocks of four slots."""

import pytest
from manual_driver import admit, admit_and_prefill, extend, fork, release, samples, sequence

from testbed.core.sequence import disband, passing_batch
from testbed.core.slots import Copy, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec


def paged(num_blocks=16, watermark=0.0):
    return Paged(PoolSpec(num_blocks * 4, 64), block_size=4, watermark=watermark)


def possible_steps(policy, seqs):
    """How many single steps these sequences can go on for."""
    steps = 0
    while not isinstance(extend(policy, seqs, 1), Refusal):
        steps += 1
        policy.check()
    return steps


def test_request_larger_than_the_pool_is_never_admitted():
    assert not isinstance(admit(paged(4), [sequence(0, 16)], 16), Refusal)
    assert admit(paged(4), [sequence(0, 17)], 17) is Refusal.NEVER
    policy = paged(4)
    admit_and_prefill(policy, [sequence(0, 1)], 1)
    assert admit(policy, [sequence(1, 16)], 16) is Refusal.LATER


def test_watermark_stays_free_unless_the_pool_is_idle():
    policy = paged(10, watermark=0.15)  # 1.5 blocks are 2
    admit_and_prefill(policy, [sequence(0, 4)], 4)
    assert admit(policy, [sequence(1, 32)], 32) is Refusal.LATER
    assert not isinstance(admit(policy, [sequence(2, 28)], 28), Refusal)
    policy = paged(10, watermark=0.15)
    assert not isinstance(admit(policy, [sequence(3, 40)], 40), Refusal)


def test_samples_share_all_but_the_last_partial_block():
    policy, seqs = paged(), samples(10, count=3)
    admit_and_prefill(policy, seqs, 10)
    tables = [policy.table(seq) for seq in seqs]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    used = policy.usage()
    assert (used.live, used.held, used.saved) == (8 + 3 * 2, 8 + 3 * 4, 2 * 8)
    policy.check()


def test_shared_block_is_copied_except_for_the_last_writer():
    policy, (parent, *children) = paged(), samples(6, count=3)
    admit_and_prefill(policy, [parent], 6)
    for child in children:
        fork(policy, parent, child)
    answer = extend(policy, [parent, *children], 1)
    assert answer.ops.copies == (Copy(4, 8, 4), Copy(4, 12, 4))
    assert policy.usage().live == 4 + 3 * 3
    policy.check()


def test_preempted_group_leaves_no_pending_copies():
    """A group forks and is preempted before its next step; another one is given the same blocks, and forks too."""
    policy, batch = paged(), passing_batch([])
    for first in (0, 2):
        parent, child = samples(6, first=first)
        admit_and_prefill(policy, [parent], 6)
        batch.add(parent)
        fork(policy, parent, child)
        batch.add(child)
        policy.guaranteed_steps(batch)  # whatever the policy keeps on the batch is there from now on
        if not first:
            for seq in (parent, child):
                batch.remove(seq)
                release(policy, seq)
    assert len(policy.extend(batch, 1).ops.copies) == 1
    batch.extend(1)
    assert policy.table(parent)[-1] != policy.table(child)[-1]
    policy.check()


@pytest.mark.parametrize("lengths", [(4,), (3, 5), (8, 8, 8), (1, 2, 3, 4), (7, 9)])
@pytest.mark.parametrize("num_blocks", [6, 7, 13])
def test_guaranteed_steps_never_exceed_possible_steps(lengths, num_blocks):
    """At most the steps that there are, at least the whole rounds that every sequence has a block for."""
    policy, seqs = paged(num_blocks), [sequence(i, length) for i, length in enumerate(lengths)]
    for seq in seqs:
        admit_and_prefill(policy, [seq], seq.prompt_len)
    batch = passing_batch(seqs)
    promised, free = policy.guaranteed_steps(batch), policy.usage().free // 4
    disband(batch)
    found = possible_steps(policy, seqs)
    assert promised <= found
    assert promised >= free // len(seqs) * 4


def test_replaced_beam_frees_its_last_blocks():
    policy, (one, two) = paged(), samples(8)
    admit_and_prefill(policy, [one], 8)
    fork(policy, one, two)
    extend(policy, [one, two], 2)
    assert policy.usage().held == 16
    policy.fork(one, two)
    policy.check()
    assert policy.table(one) == policy.table(two)
    assert (policy.usage().live, policy.usage().held, policy.usage().saved) == (10, 12, 12)
