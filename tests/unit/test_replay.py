"""Untimed replay: hit counts by hand, Belady against brute force, and the bound that it is for every other order."""

import itertools
import os
from pathlib import Path

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
from testbed.memory.prefix_cache.replay import Prompt, prompts_of, replay
from traces.mooncake import MooncakeJsonl

ORDERS = [Lru, Fifo, Lfu, Arc, S3Fifo, CostAware]
SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared"))
MOONCAKE = SHARED / "data" / "mooncake" / "conversation_trace.jsonl.gz"


def prompts(*texts):
    """One letter a block; a full stop stands for a partial last block."""
    return [Prompt([ord(letter) for letter in text.rstrip(".")], len(text)) for text in texts]


def best_possible(asked, size):
    """Most hits of all eviction decisions, by trying every one."""
    chains = [tuple(p.contents[: i + 1]) for p in asked for i in range(len(p.contents[:size]))]
    ends = list(itertools.accumulate(len(p.contents[:size]) for p in asked))
    states = {frozenset(): 0}
    for start, end in itertools.pairwise([0, *ends]):
        wanted = chains[start:end]
        after = {}
        for state, hits in states.items():
            found = len(list(itertools.takewhile(state.__contains__, wanted)))
            others = sorted(state - set(wanted))
            room = size - len(wanted)
            for kept in itertools.combinations(others, min(room, len(others))):
                new = frozenset(wanted) | frozenset(kept)
                after[new] = max(after.get(new, -1), hits + found)
        states = after
    return max(states.values())


# Letters of a small alphabet: prompts that begin alike, branch, and come back.
traces = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=9).map(lambda texts: prompts(*texts))
longer = st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=60).map(lambda texts: prompts(*texts))


def test_hits_by_hand():
    asked = prompts("abc", "abd.", "abc", "b")
    assert replay(asked, None, Lru()).hits == [0, 2, 3, 0]
    assert replay(asked, None, Lru()).hit_rate == 5 / 11
    assert replay(asked, 3, Lru()).hits == [0, 2, 2, 0]
    assert replay(asked, 4, Lru()).hits == [0, 2, 3, 0]


def test_the_end_of_a_chain_leaves_before_its_beginning():
    assert replay(prompts("abcd", "xy", "abcd"), 4, Lru()).hits == [0, 0, 2]


def test_a_block_without_its_predecessor_is_no_hit_until_that_is_back():
    # First in, first out: "a" came first, so it goes when "x" needs a block, and "ab" behind it is stranded.
    asked = prompts("a", "ab", "x", "ab", "ab")
    assert replay(asked, 2, Fifo()).hits[3] == 0
    assert replay(asked, 3, Fifo()).hits == [0, 1, 0, 2, 2]


def test_a_prompt_larger_than_the_cache_leaves_out_its_end():
    assert replay(prompts("abcdef", "abcdef"), 4, Lru()).hits == [0, 4]


def test_a_partial_block_counts_and_is_never_found():
    assert replay(prompts("ab.", "ab."), None, Lru()).hit_rate == 2 / 6


@settings(max_examples=300, deadline=None)
@given(traces, st.integers(1, 5))
def test_belady_equals_brute_force(asked, size):
    assert sum(replay(asked, size, Belady()).hits) == best_possible(asked, size)


@settings(max_examples=300, deadline=None)
@given(longer, st.integers(1, 20))
def test_no_order_beats_belady(asked, size):
    bound = sum(replay(asked, size, Belady()).hits)
    for order in ORDERS:
        assert sum(replay(asked, size, order()).hits) <= bound, order


@settings(max_examples=200, deadline=None)
@given(longer, st.sampled_from([*ORDERS, Belady]))
def test_an_unbounded_cache_finds_everything_that_was_asked_before(asked, order):
    seen, hits = set(), []
    for prompt in asked:
        chain = [tuple(prompt.contents[: i + 1]) for i in range(len(prompt.contents))]
        hits.append(sum(part in seen for part in chain))
        seen.update(chain)
    result = replay(asked, None, order())
    assert (result.hits, result.evictions) == (hits, 0)


@settings(max_examples=200, deadline=None)
@given(longer, st.integers(1, 20), st.sampled_from(ORDERS))
def test_a_hash_that_always_collides_changes_no_hit(asked, size, order):
    if order not in (Arc, S3Fifo):  # their ghosts are known by hash
        assert replay(asked, size, order(), lambda pair: 0).hits == replay(asked, size, order()).hits


@pytest.fixture(scope="module")
def conversations():
    if not MOONCAKE.exists():
        pytest.skip("needs the shared Mooncake conversation trace (set TESTBED_SHARED to the shared folder)")
    return list(prompts_of(MooncakeJsonl(str(MOONCAKE)).rows(None, 0), 512))


def test_mooncake_unbounded(conversations):
    assert replay(conversations, None, Lru()).hit_rate == pytest.approx(0.366, abs=0.001)


@pytest.mark.parametrize("size", [1_000, 10_000])
def test_mooncake_no_order_beats_belady(conversations, size):
    bound = replay(conversations, size, Belady()).hit_rate
    assert all(replay(conversations, size, order()).hit_rate <= bound for order in ORDERS)
