"""Contiguous memory on pools small enough to be counted by hand: reservations, refusals, and the
buddy allocator.
"""

from random import Random

import pytest
from manual_driver import admit, admit_and_prefill, fork, samples, sequence

from testbed.core.slots import Copy, Extent, Refusal
from testbed.memory.contiguous.buddy import BuddyAllocator
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.policy import PoolSpec
from testbed.run.oracles import with_lengths


def policy_of(kind, num_slots=256, max_len=256, block_size=4, **outputs):
    lengths = {int(name[1:]): length for name, length in outputs.items()}
    return with_lengths(kind, lengths)(PoolSpec(num_slots, max_len), block_size)


@pytest.mark.parametrize(
    ("output_len", "slots"), [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64), (100, 90)]
)
def test_pow2_reserves_output_rounded_up_within_max_len(output_len, slots):
    assert policy_of(ContiguousPow2, max_len=100).reservation_for(10, output_len) == 10 + slots


def test_oracle_reserves_exactly_the_final_length():
    assert policy_of(ContiguousOracle, max_len=100).reservation_for(10, 25) == 35
    assert policy_of(ContiguousOracle, max_len=30).reservation_for(10, 25) == 30


def test_group_admission_is_all_or_nothing():
    assert not isinstance(
        admit(policy_of(ContiguousMax, max_len=64), [sequence(i, 8) for i in range(4)], 8), Refusal
    )
    assert (
        policy_of(ContiguousMax, max_len=64).admit([sequence(i, 8) for i in range(5)], 8)
        is Refusal.NEVER
    )
    policy = policy_of(ContiguousMax, max_len=64)
    admit(policy, [sequence(i, 8) for i in range(2)], 8)
    before = policy.usage()
    assert policy.admit([sequence(i, 8) for i in range(2, 5)], 8) is Refusal.LATER
    assert policy.usage() == before


def test_tables_and_rounding_are_counted_in_slots():
    policy, one, two = policy_of(ContiguousOracle, r0=8, r1=7), sequence(0, 10), sequence(1, 10)
    admit_and_prefill(policy, [one], 10)
    admit_and_prefill(policy, [two], 10)  # 18 and 17 slots, each in a range of 32
    assert (policy.table(one), policy.table(two)) == ([Extent(0, 18)], [Extent(32, 17)])
    assert policy.non_sequence_slots().rounding == (Extent(18, 14), Extent(49, 15))
    assert policy.footprint(two).waste(12) == [
        (0, 5)
    ]  # its 17 slots but for 12, whatever the range


def test_fork_copies_the_whole_buddy_range():
    policy, seqs = policy_of(ContiguousOracle, r0=30), samples(10)
    admit_and_prefill(policy, seqs, 10)
    assert fork(policy, *seqs).copies == (Copy(0, 64, 64),)


@pytest.mark.parametrize(
    ("kind", "num_seqs", "longest"),
    [
        (ContiguousOracle, 1, 64),
        (ContiguousOracle, 3, 16),
        (ContiguousPow2, 2, 26),
        (ContiguousMax, 1, 0),
    ],
)
def test_max_seq_len_is_that_of_an_empty_pool(kind, num_seqs, longest):
    """64 slots: one range, two of 32 or four of 16; a prompt of 10 and 16 more, because 32 more
    would take 64.
    """
    assert policy_of(kind, num_slots=64, max_len=100).max_seq_len(10, num_seqs) == longest


@pytest.mark.parametrize("num_units", [1, 7, 983, 1024])
def test_freed_buddy_ranges_merge_completely(num_units):
    buddy, rng, taken = BuddyAllocator(num_units), Random(num_units), []
    before = buddy.free_ranges()
    for _ in range(500):
        if taken and rng.random() < 0.45:
            buddy.free(*taken.pop(rng.randrange(len(taken))))
        elif (start := buddy.allocate(order := rng.randrange(4))) is not None:
            taken.append((start, order))
        ranges = buddy.free_ranges()
        ends = [0, *(start + units for start, units in ranges)]
        assert all(
            start >= end and start % units == 0
            for end, (start, units) in zip(ends, ranges, strict=False)
        )
        assert ends[-1] <= num_units == buddy.num_free + sum(1 << order for _, order in taken)
    for held in taken:
        buddy.free(*held)
    assert buddy.free_ranges() == before


def test_fragmented_free_units_form_no_larger_range():
    buddy = BuddyAllocator(8)
    starts = [buddy.allocate(0) for _ in range(8)]
    for start in starts[::2]:
        buddy.free(start, 0)
    assert (buddy.num_free, buddy.largest_free(), buddy.allocate(1)) == (4, 1, None)
