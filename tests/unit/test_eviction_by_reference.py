"""Eviction orders against plain pages: prompts of one block each, so that a cache of blocks is a cache of pages."""

from collections import OrderedDict, deque
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.fifo import Fifo
from testbed.memory.prefix_cache.eviction.lfu import Lfu
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.replay import Prompt, replay

ORDERS = [Lru, Fifo, Lfu, Arc, S3Fifo, CostAware]
pages = st.lists(st.integers(0, 5), max_size=14)
few = settings(max_examples=60, deadline=None, derandomize=True)


def hits(order, asked, size):
    return replay([Prompt((page,), 1) for page in asked], size, order()).hits


def lru(asked, size):
    held, found = OrderedDict(), []
    for page in asked:
        found.append(int(page in held))
        held[page] = None
        held.move_to_end(page)
        if len(held) > size:
            held.popitem(last=False)
    return found


def fifo(asked, size):
    held, found = deque(maxlen=size), []
    for page in asked:
        found.append(int(page in held))
        if page not in held:
            held.append(page)
    return found


def most(asked, size):
    """The most hits that any choice of victims gives, by trying all of them."""

    @cache
    def best(i, held):
        if i == len(asked):
            return 0
        page = asked[i]
        if page in held:
            return 1 + best(i + 1, held)
        if len(held) < size:
            return best(i + 1, held | {page})
        return max(best(i + 1, held - {victim} | {page}) for victim in held)

    return best(0, frozenset())


@pytest.mark.parametrize(("order", "plain"), [(Lru, lru), (Fifo, fifo)])
def test_the_textbook_s_orders_are_the_textbook_s(order, plain):
    @few
    @given(pages, st.integers(1, 4))
    def check(asked, size):
        assert hits(order, asked, size) == plain(asked, size)

    check()


@few
@given(pages, st.integers(1, 4))
def test_belady_s_order_finds_the_most_that_can_be_found(asked, size):
    assert sum(hits(Belady, asked, size)) == most(asked, size)


@pytest.mark.parametrize("order", ORDERS)
def test_no_order_finds_more_than_belady_s_on_chains_either(order):
    """Prompts of up to four blocks that share their beginnings, as conversations do."""
    chains = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4)), max_size=20)

    @few
    @given(chains, st.integers(4, 8))
    def check(drawn, size):
        prompts = [
            Prompt(((root,), (branch,), (branch, 1), (branch, 2))[:length], length) for root, branch, length in drawn
        ]
        found = sum(replay(prompts, size, order()).hits)
        assert found <= sum(replay(prompts, size, Belady()).hits)

    check()


@pytest.mark.parametrize("order", [Arc, S3Fifo])
def test_a_scan_does_not_sweep_out_what_is_used_again_and_again(order):
    """Two pages in turn, then a scan of twenty others in a cache of four, then the two again."""
    asked = [1, 2] * 6 + list(range(10, 30)) + [1, 2]
    assert hits(order, asked, 4)[-2:] == [1, 1]
    assert hits(Lru, asked, 4)[-2:] == [0, 0]
