"""Hit curves: LRU in one pass equals the policy itself, and no order beats the bound."""

import itertools
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings

from testbed.core.request import Rows
from testbed.memory.prefix_cache.curves.bound import most_hits
from testbed.memory.prefix_cache.curves.policy_replay import replayed_hits
from testbed.memory.prefix_cache.curves.stack_distances import lru_hits
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Fifo, Lfu
from testbed.memory.prefix_cache.replay import prompts_of

BLOCK = 2  # tokens
ORDERS = [Lru, Fifo, Lfu, Arc, CostAware, BySession, Belady]
# One letter a token; an odd number of letters ends in a partial block.
texts = st.lists(st.text("ab", min_size=1, max_size=14), min_size=1, max_size=40)
sizes = st.lists(st.integers(1, 24), min_size=1, max_size=12, unique=True)


def rows_of(prompts):
    lengths = np.array([len(text) for text in prompts])
    ids = [tuple(map(ord, text)) for text in prompts]
    return Rows(lengths, np.ones_like(lengths), prompt_ids=ids)


def curves(prompts, sizes):
    """LRU's hits and the bound, by size."""
    blocks = list(prompts_of(rows_of(prompts), BLOCK))
    return lru_hits(blocks, sizes), most_hits(blocks, sizes)


def replayed(prompts, size, order=Lru):
    return sum(replayed_hits(rows_of(prompts), BLOCK, size, order()))


def best_possible(prompts, size):
    """Most blocks found by any choice of what to keep, by trying every one."""
    states = {frozenset(): 0}
    for text in (text for text in prompts if -(-len(text) // BLOCK) <= size):
        full = [text[:end] for end in range(BLOCK, len(text) + 1, BLOCK)]
        num_blocks = -(-len(text) // BLOCK)
        after = {}
        for state, hits in states.items():
            num_found = len(list(itertools.takewhile(state.__contains__, full[: num_blocks - 1])))
            others = sorted(state - set(full[:num_found]))
            kept_most = min(size - num_blocks, len(others))
            for kept in itertools.combinations(others, kept_most):
                new = frozenset(full).union(kept)
                after[new] = max(after.get(new, -1), hits + num_found)
        states = after
    return max(states.values())


@settings(max_examples=examples(300), deadline=None)
@given(texts, sizes)
def test_one_pass_of_lru_equals_the_policy_at_every_size(prompts, sizes):
    assert curves(prompts, sizes)[0] == [replayed(prompts, size) for size in sizes]


@settings(max_examples=examples(200), deadline=None)
@given(texts, st.integers(1, 24), st.sampled_from(ORDERS))
def test_no_order_of_the_policy_beats_the_bound(prompts, size, order):
    (_,), (bound,) = curves(prompts, [size])
    assert replayed(prompts, size, order) <= bound


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=8), st.integers(1, 6))
def test_bound_is_reached_by_the_best_choice(prompts, size):
    assert curves(prompts, [size])[1] == [best_possible(prompts, size)]


def test_last_token_of_a_prompt_is_computed_again():
    assert curves(["abab", "abab"], [4]) == ([1], [1])
    assert curves(["ababa", "ababa"], [4]) == ([2], [2])


def test_prompt_larger_than_the_cache_is_refused_and_changes_nothing():
    assert curves(["aab", "aaaaaaa", "aab"], [2]) == ([1], [1])


@pytest.mark.parametrize("size", [1, 3, 8])
def test_sizes_do_not_depend_on_each_other(size):
    prompts = ["abab", "ababab", "bbaabbaabb", "ababab", "bbaabb", "abab"]
    lru, bound = curves(prompts, range(1, 9))
    alone = partial(curves, prompts)
    assert alone([size]) == ([lru[size - 1]], [bound[size - 1]])
