"""The buddy allocator: ranges split, and join back whatever the order in which they are freed."""

from itertools import permutations
from random import Random

import pytest

from testbed.memory.contiguous.buddy import BuddyAllocator


@pytest.mark.parametrize("order_of_frees", list(permutations(range(4))))
def test_free_ranges_join_back_whatever_the_order_of_frees(order_of_frees):
    buddy = BuddyAllocator(8)
    taken = [(buddy.allocate(1), 1) for _ in range(4)]
    for i in order_of_frees:
        buddy.free(*taken[i])
        buddy.check()
    assert buddy.free_ranges() == [(0, 8)]


@pytest.mark.parametrize("num_units", [1, 7, 983, 1024])
def test_a_pool_of_any_size_is_whole_again_when_everything_is_free(num_units):
    buddy, rng, taken = BuddyAllocator(num_units), Random(num_units), []
    before = buddy.free_ranges()
    for _ in range(500):
        if taken and rng.random() < 0.45:
            buddy.free(*taken.pop(rng.randrange(len(taken))))
        elif (start := buddy.allocate(order := rng.randrange(4))) is not None:
            taken.append((start, order))
        buddy.check()
    for held in taken:
        buddy.free(*held)
    assert buddy.free_ranges() == before


def test_a_pool_that_is_no_power_of_two_starts_as_those_that_fill_it():
    assert BuddyAllocator(13).free_ranges() == [(0, 8), (8, 4), (12, 1)]
    assert BuddyAllocator(0).allocate(0) is None


def test_ranges_are_aligned_and_lowest_first_and_do_not_overlap():
    buddy = BuddyAllocator(16)
    assert [buddy.allocate(order) for order in (0, 1, 0, 2, 3)] == [0, 2, 1, 4, 8]
    assert buddy.allocate(0) is None


def test_enough_free_units_in_pieces_are_no_free_range():
    buddy = BuddyAllocator(8)
    starts = [buddy.allocate(0) for _ in range(8)]
    for start in starts[::2]:
        buddy.free(start, 0)
    assert (buddy.num_free, buddy.largest_free(), buddy.allocate(1)) == (4, 1, None)


def test_of_equal_ranges_the_lowest_is_taken_whatever_was_freed_last():
    buddy = BuddyAllocator(16)
    starts = [buddy.allocate(1) for _ in range(8)]
    for start in (starts[5], starts[1], starts[6]):
        buddy.free(start, 1)
    assert [buddy.allocate(1) for _ in range(3)] == [starts[1], starts[5], starts[6]]
