"""Reservations, refusals and accounts of contiguous memory, on pools small enough to be counted by hand."""

import pytest
from by_hand import admit, extend, fork, release, seat, sequence

from testbed.core.slots import Copy, Extent, Refusal
from testbed.memory.contiguous.buddy import BuddyAllocator
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.policy import PoolSpec


def policy_of(kind, num_slots=256, max_len=256, block_size=4, **outputs):
    policy = kind(PoolSpec(num_slots, max_len), block_size)
    if policy.reads_output_len:
        policy.foresee({int(name[1:]): length for name, length in outputs.items()})
    return policy


@pytest.mark.parametrize(("output_len", "slots"), [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64), (100, 90)])
def test_a_power_of_two_at_least_the_output_is_reserved_and_never_more_than_the_longest_sequence(output_len, slots):
    assert policy_of(ContiguousPow2, max_len=100).reservation(10, output_len) == 10 + slots


def test_the_oracle_reserves_what_will_be_used():
    assert policy_of(ContiguousOracle, max_len=100).reservation(10, 25) == 35
    assert policy_of(ContiguousOracle, max_len=30).reservation(10, 25) == 30


def test_a_range_of_exactly_a_power_of_two_of_blocks_holds_that_many():
    policy, seq = policy_of(ContiguousOracle, r0=22), sequence(0, 10)  # 32 slots, 8 blocks
    seat(policy, [seq], 10)
    used = policy.usage()
    assert (used.held, used.allocated, used.free) == (32, 32, 224)
    assert not policy.unowned().rounding


def test_a_group_may_fill_the_pool_and_one_that_cannot_fit_beside_others_takes_nothing():
    policy = policy_of(ContiguousMax, max_len=64)
    assert not isinstance(admit(policy, [sequence(i, 8) for i in range(4)], 8), Refusal)
    assert policy_of(ContiguousMax, max_len=64).admit([sequence(i, 8) for i in range(5)], 8) is Refusal.NEVER
    policy = policy_of(ContiguousMax, max_len=64)
    admit(policy, [sequence(i, 8) for i in range(2)], 8)
    before = policy.usage()
    assert policy.admit([sequence(i, 8) for i in range(2, 5)], 8) is Refusal.LATER
    assert policy.usage() == before
    policy.check()


def test_a_reservation_is_used_to_its_last_slot_and_no_further():
    policy, seq = policy_of(ContiguousOracle, r0=6), sequence(0, 10)
    seat(policy, [seq], 10)
    assert not isinstance(extend(policy, [seq], 6), Refusal)
    assert extend(policy, [seq], 1) is Refusal.NEVER
    assert policy.longest(10, 1) == 256


def test_everything_is_given_back_generated_tokens_too():
    policy = policy_of(ContiguousOracle, r0=6, r1=9)
    one, two = sequence(0, 10), sequence(1, 5)
    seat(policy, [one], 10)
    seat(policy, [two], 5)
    extend(policy, [one, two], 4)
    assert (policy.usage().live, policy.usage().held) == (14 + 9, 16 + 14)
    release(policy, one)
    assert (policy.usage().live, policy.usage().held) == (9, 14)
    release(policy, two)
    assert policy.usage() == (256, 0, 0, 0, 0, 256, 256, 0)


def test_tables_and_rounding_are_in_slots():
    policy, one, two = policy_of(ContiguousOracle, r0=8, r1=7), sequence(0, 10), sequence(1, 10)
    seat(policy, [one], 10)
    seat(policy, [two], 10)  # 18 and 17 slots, each in a range of 32
    assert (policy.table(one), policy.table(two)) == ([Extent(0, 18)], [Extent(32, 17)])
    assert policy.unowned().rounding == (Extent(18, 14), Extent(49, 15))
    assert policy.footprint(two).waste(12) == [(0, 5)]  # its 17 slots but for 12, whatever the range


def test_a_fork_copies_from_the_parent_to_the_child():
    policy, parent, child = policy_of(ContiguousMax, max_len=16), sequence(0, 8), sequence(0, 8)
    child.seq_id = 1
    seat(policy, [parent, child], 8)
    assert fork(policy, parent, child).copies == (Copy(0, 16, 16),)


@pytest.mark.parametrize(("kind", "num_seqs", "longest"), [
    (ContiguousOracle, 1, 64), (ContiguousOracle, 3, 16), (ContiguousPow2, 2, 26), (ContiguousMax, 1, 0),
])  # fmt: skip
def test_the_longest_sequence_that_an_empty_pool_could_hold(kind, num_seqs, longest):
    """64 slots: one range, two of 32 or four of 16; a prompt of 10 and 16 more, because 32 more would take 64."""
    assert policy_of(kind, num_slots=64, max_len=100).longest(10, num_seqs) == longest


def test_the_largest_of_free_ranges_of_many_sizes():
    buddy = BuddyAllocator(13)
    assert buddy.largest_free() == 8
    buddy.allocate(3)
    assert buddy.largest_free() == 4
    assert [buddy.allocate(2), buddy.largest_free(), buddy.allocate(0), buddy.largest_free()] == [8, 1, 12, 0]
