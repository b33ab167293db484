"""Blocks that are taken, shared, promised and given back: counted by hand on pools of a few blocks of four slots."""

import pytest
from by_hand import admit, extend, fork, release, samples, seat, sequence

from testbed.core.batch import disband, passing_batch
from testbed.core.slots import Copy, Grant, Refusal
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec


def paged(num_blocks=16, watermark=0.0):
    return Paged(PoolSpec(num_blocks * 4, 64), block_size=4, watermark=watermark)


def room(policy, seqs):
    """How many single steps these sequences can go on for."""
    steps = 0
    while not isinstance(extend(policy, seqs, 1), Refusal):
        steps += 1
        policy.check()
    return steps


@pytest.mark.parametrize(("num_tokens", "held"), [(1, 4), (4, 4), (5, 8), (8, 8)])
def test_a_prompt_takes_the_whole_blocks_that_it_needs(num_tokens, held):
    policy = paged()
    seat(policy, [sequence(0, 8)], num_tokens)
    assert (policy.usage().live, policy.usage().held) == (num_tokens, held)
    policy.check()


def test_a_pool_may_be_filled_and_what_is_larger_is_never_admitted():
    assert not isinstance(admit(paged(4), [sequence(0, 16)], 16), Refusal)
    assert admit(paged(4), [sequence(0, 17)], 17) is Refusal.NEVER
    policy = paged(4)
    seat(policy, [sequence(0, 1)], 1)
    assert admit(policy, [sequence(1, 16)], 16) is Refusal.LATER


def test_the_watermark_stays_free_unless_nothing_is_resident():
    policy = paged(10, watermark=0.15)  # 1.5 blocks are 2
    seat(policy, [sequence(0, 4)], 4)
    assert admit(policy, [sequence(1, 32)], 32) is Refusal.LATER
    assert not isinstance(admit(policy, [sequence(2, 28)], 28), Refusal)
    policy = paged(10, watermark=0.15)
    assert not isinstance(admit(policy, [sequence(3, 40)], 40), Refusal)


def test_samples_share_whole_blocks_and_nobody_shares_the_last_partial_one():
    policy, seqs = paged(), samples(10, count=3)
    seat(policy, seqs, 10)
    tables = [policy.table(seq) for seq in seqs]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    used = policy.usage()
    assert (used.live, used.held, used.saved) == (8 + 3 * 2, 8 + 3 * 4, 2 * 8)
    policy.check()


def test_what_every_holder_gives_back_is_free_when_the_last_has_gone():
    policy, seqs = paged(), samples(8, count=3)
    seat(policy, seqs, 8)
    for left, seq in zip((8, 8, 0), seqs, strict=True):
        release(policy, seq)
        policy.check()
        assert policy.usage().held == left


def test_the_first_writers_copy_a_shared_block_and_the_last_writes_in_place():
    policy, (parent, *children) = paged(), samples(6, count=3)
    seat(policy, [parent], 6)
    for child in children:
        fork(policy, parent, child)
    answer = extend(policy, [parent, *children], 1)
    assert answer.ops.copies == (Copy(4, 8, 4), Copy(4, 12, 4))
    assert policy.usage().live == 4 + 3 * 3
    policy.check()


def test_candidates_that_go_on_from_one_parent_each_write_into_a_block_of_their_own():
    """As beams do: the fork is between members of a batch that has stepped already."""
    policy, (parent, *children) = paged(), samples(6, count=3)
    for seq in (parent, *children):
        seat(policy, [seq], 6)
    batch = passing_batch([parent, *children])
    policy.extend(batch, 1)
    batch.extend(1)
    for child in children:
        policy.fork(parent, child)
    assert policy.usage().held == 8
    assert len(policy.extend(batch, 1).ops.copies) == 2
    batch.extend(1)
    assert len({policy.table(seq)[-1] for seq in batch}) == 3
    policy.check()


def test_who_has_left_the_batch_copies_nothing_in_the_name_of_who_has_its_blocks_now():
    """A group forks and is preempted before its next step; another one is given the same blocks, and forks too."""
    policy, batch = paged(), passing_batch([])
    for first in (0, 2):
        parent, child = samples(6, first=first)
        seat(policy, [parent], 6)
        batch.join(parent)
        fork(policy, parent, child)
        batch.join(child)
        policy.horizon(batch)  # whatever the policy keeps on the batch is there from now on
        if not first:
            for seq in (parent, child):
                batch.leave(seq)
                release(policy, seq)
    assert len(policy.extend(batch, 1).ops.copies) == 1
    batch.extend(1)
    assert policy.table(parent)[-1] != policy.table(child)[-1]
    policy.check()


def test_a_full_block_is_shared_on_without_a_copy():
    policy, (parent, child) = paged(), samples(8)
    seat(policy, [parent], 8)
    fork(policy, parent, child)
    assert not extend(policy, [parent, child], 1).ops
    assert policy.table(parent)[:2] == policy.table(child)[:2]
    policy.check()


def test_copies_need_free_blocks_too():
    policy, (parent, child) = paged(2), samples(6)
    seat(policy, [parent], 6)
    fork(policy, parent, child)
    assert extend(policy, [parent, child], 1) is Refusal.LATER
    assert extend(policy, [parent], 1) is Refusal.LATER
    release(policy, child)
    assert isinstance(extend(policy, [parent], 1), Grant)


def test_a_step_of_several_tokens_needs_blocks_for_its_copies_and_for_what_comes_behind_them():
    """Two of 6 tokens that share two blocks take 3 tokens each: a copy, and a third block for both."""
    for num_blocks, refused in ((4, True), (5, False)):
        policy, (parent, child) = paged(num_blocks), samples(6)
        seat(policy, [parent], 6)
        fork(policy, parent, child)
        assert isinstance(extend(policy, [parent, child], 3), Refusal) is refused
        policy.check()


@pytest.mark.parametrize("lengths", [(4,), (3, 5), (8, 8, 8), (1, 2, 3, 4), (7, 9)])
@pytest.mark.parametrize("num_blocks", [6, 7, 13])
def test_a_promise_is_what_single_steps_find(lengths, num_blocks):
    """`horizon` never says more than there is, and at least the whole rounds that every sequence has a block for."""
    policy, seqs = paged(num_blocks), [sequence(i, length) for i, length in enumerate(lengths)]
    for seq in seqs:
        seat(policy, [seq], seq.prompt_len)
    batch = passing_batch(seqs)
    promised, free = policy.horizon(batch), policy.usage().free // 4
    disband(batch)
    found = room(policy, seqs)
    assert promised <= found
    assert promised >= free // len(seqs) * 4


def test_within_a_promise_nothing_is_copied():
    policy, (parent, child) = paged(), samples(6)
    seat(policy, [parent], 6)
    fork(policy, parent, child)
    batch = passing_batch([parent, child])
    assert policy.horizon(batch) == 0
    disband(batch)


def test_many_steps_at_once_take_what_single_ones_take():
    many, single = paged(), paged()
    for policy, steps in ((many, (11,)), (single, (1,) * 11)):
        seqs = [sequence(i, length) for i, length in enumerate((3, 4, 6))]
        for seq in seqs:
            seat(policy, [seq], seq.prompt_len)
        for step in steps:
            extend(policy, seqs, step)
        policy.check()
    assert many.usage() == single.usage()
    assert many.usage().live == 13 + 3 * 11


@pytest.mark.parametrize(("num_seqs", "longest"), [(1, 24), (2, 16), (3, 12)])
def test_the_longest_samples_share_their_prompt_alone(num_seqs, longest):
    """Six blocks, two of them the prompt's: four more for each, two, or one and a third."""
    assert paged(6).longest(8, num_seqs) == longest


def test_a_beam_that_goes_on_from_another_lets_go_of_its_own_end():
    policy, (one, two) = paged(), samples(8)
    seat(policy, [one], 8)
    fork(policy, one, two)
    extend(policy, [one, two], 2)
    assert policy.usage().held == 16
    policy.fork(one, two)
    policy.check()
    assert policy.table(one) == policy.table(two)
    assert (policy.usage().live, policy.usage().held, policy.usage().saved) == (10, 12, 12)


def test_blocks_are_handed_out_lowest_first_and_counted_by_holder():
    pool = BlockPool(6)
    assert pool.take(3) == [0, 1, 2]
    pool.share([1])
    pool.share([1])
    assert (pool.ref_count(1), pool.num_saved) == (3, 2)
    assert pool.put([1]) == 0
    assert pool.ref_count(1) == 2
    assert (pool.put([1]), pool.put([1]), pool.num_saved) == (0, 1, 0)
    pool.check([[0, 2]])
