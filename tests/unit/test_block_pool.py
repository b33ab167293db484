"""The pool of block ids: who gets which, and when a shared one is free."""

import pytest

from testbed.memory.paged.block_pool import BlockPool


def test_blocks_are_taken_lowest_first_or_in_the_order_given():
    assert BlockPool(4).take(3) == [0, 1, 2]
    assert BlockPool(4, [2, 0, 3, 1]).take(4) == [2, 0, 3, 1]
    assert BlockPool(4).take(0) == []


def test_what_was_freed_last_is_taken_first():
    pool = BlockPool(6)
    blocks = pool.take(4)
    assert pool.put(blocks[:2]) == 2
    assert pool.take(3) == [1, 0, 4]


def test_a_shared_block_is_free_when_its_last_holder_has_put_it():
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.share(blocks)
    pool.share(blocks[:1])
    assert ([pool.ref_count(b) for b in blocks], pool.num_saved) == ([3, 2], 3)
    assert [pool.put(list(blocks)), pool.put(list(blocks)), pool.put(blocks[:1])] == [0, 1, 1]
    assert (sorted(pool.free), pool.sharers, pool.num_saved) == ([0, 1, 2, 3], {}, 0)


def test_dropping_the_only_holder_is_refused():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    assert not pool.drop(block)
    pool.share([block])
    assert pool.drop(block)
    assert not pool.drop(block)


@pytest.mark.parametrize("tables", [[[0]], [[0, 1], [1, 2]], [[0, 1, 2]]])
def test_a_pool_knows_tables_that_are_not_its_own(tables):
    pool = BlockPool(4)
    table = pool.take(2)
    pool.check([table])
    with pytest.raises(AssertionError):
        pool.check(tables)
