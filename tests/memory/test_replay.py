"""Untimed replay and its orders: hits by hand and by the textbook, Belady by brute force, and
golden rows.
"""

import itertools
from random import Random

import hypothesis.strategies as st
import pytest
from depth import examples
from hypothesis import given, settings

from testbed.experiments.runs.simulator_speed import branching
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Fifo, Lfu
from testbed.memory.prefix_cache.replay import Prompt, replay, serve

ORDERS = [Lru, Fifo, Lfu, Arc, CostAware, BySession]


def prompts(*texts):
    """One letter a block; a full stop stands for a partial last block."""
    return [Prompt([ord(letter) for letter in text.rstrip(".")], len(text)) for text in texts]


def best_possible(requested, size):
    """Most hits of all eviction decisions, by trying every one."""
    chains = [tuple(p.contents[: i + 1]) for p in requested for i in range(len(p.contents[:size]))]
    ends = list(itertools.accumulate(len(p.contents[:size]) for p in requested))
    states = {frozenset(): 0}
    for start, end in itertools.pairwise([0, *ends]):
        wanted = chains[start:end]
        after = {}
        for state, hits in states.items():
            num_found = len(list(itertools.takewhile(state.__contains__, wanted)))
            others = sorted(state - set(wanted))
            num_slots = size - len(wanted)
            for kept in itertools.combinations(others, min(num_slots, len(others))):
                new = frozenset(wanted) | frozenset(kept)
                after[new] = max(after.get(new, -1), hits + num_found)
        states = after
    return max(states.values())


# Letters of a small alphabet: prompts that begin alike, branch, and come back.
traces = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=9).map(
    lambda texts: prompts(*texts)
)
longer = st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=60).map(
    lambda texts: prompts(*texts)
)


def test_lru_hits_match_worked_examples():
    requested = prompts("abc", "abd.", "abc", "b")
    assert replay(requested, None, Lru()).hits == [0, 2, 3, 0]
    assert replay(requested, None, Lru()).hit_rate == 5 / 11
    assert replay(requested, 3, Lru()).hits == [0, 2, 2, 0]
    assert replay(requested, 4, Lru()).hits == [0, 2, 3, 0]


def test_last_block_of_a_chain_is_evicted_first():
    assert replay(prompts("abcd", "xy", "abcd"), 4, Lru()).hits == [0, 0, 2]


def test_block_without_its_predecessor_is_no_hit():
    # First in, first out: "a" came first, so it goes when "x" needs a block, and "ab" behind it is
    # stranded.
    requested = prompts("a", "ab", "x", "ab", "ab")
    assert replay(requested, 2, Fifo()).hits[3] == 0
    assert replay(requested, 3, Fifo()).hits == [0, 1, 0, 2, 2]


def test_prompt_larger_than_the_cache_keeps_its_start():
    assert replay(prompts("abcdef", "abcdef"), 4, Lru()).hits == [0, 4]


def test_partial_block_is_counted_but_never_hit():
    assert replay(prompts("ab.", "ab."), None, Lru()).hit_rate == 2 / 6


@settings(max_examples=examples(300), deadline=None)
@given(traces, st.integers(1, 5))
def test_belady_equals_brute_force(requested, size):
    assert sum(replay(requested, size, Belady()).hits) == best_possible(requested, size)


@settings(max_examples=examples(300), deadline=None)
@given(longer, st.integers(1, 20))
def test_no_order_beats_belady(requested, size):
    bound = sum(replay(requested, size, Belady()).hits)
    for order in ORDERS:
        assert sum(replay(requested, size, order()).hits) <= bound, order


@settings(max_examples=examples(200), deadline=None)
@given(longer, st.sampled_from([*ORDERS, Belady]))
def test_unbounded_cache_hits_everything_seen_before(requested, order):
    seen, hits = set(), []
    for prompt in requested:
        chain = [tuple(prompt.contents[: i + 1]) for i in range(len(prompt.contents))]
        hits.append(sum(part in seen for part in chain))
        seen.update(chain)
    result = replay(requested, None, order())
    assert (result.hits, result.evictions) == (hits, 0)


@settings(max_examples=examples(200), deadline=None)
@given(longer, st.integers(1, 20), st.sampled_from([order for order in ORDERS if order is not Arc]))
def test_hash_collisions_change_no_hit(requested, size, order):  # Arc knows its ghosts by hash
    pool = CachingPool(size, order())
    pool.index.hash_of = lambda pair: 0
    hits = [serve(pool, prompt.contents[:size]) for prompt in requested]
    assert hits == replay(requested, size, order()).hits


SIZES = (100, 200, 400, 800)
GOLDEN = {
    Lru: [(554, 8851), (1043, 8262), (1802, 7303), (2849, 5856)],
    Fifo: [(483, 8922), (900, 8379), (1422, 7559), (1985, 6454)],
    Lfu: [(1001, 8404), (1922, 7383), (2896, 6209), (3468, 5237)],
    Arc: [(1068, 8337), (2149, 7156), (3091, 6014), (3495, 5210)],
    CostAware: [(568, 8837), (1232, 8073), (2359, 6746), (3211, 5494)],
    Belady: [(2009, 7396), (3048, 6257), (3724, 5381), (3811, 4894)],
}


def row(order):
    prompts = [Prompt(contents, len(contents)) for contents in branching(400, 20, Random(1))]
    results = [replay(prompts, size, order()) for size in SIZES]
    return [(sum(result.hits), result.evictions) for result in results]


@pytest.mark.parametrize("order", GOLDEN)
def test_eviction_orders_keep_their_golden_rows(order):
    assert row(order) == GOLDEN[order], f"{order.__name__}: {row(order)}"


def hits(order, requested, size):
    """Hits of prompts of one block each, so that a cache of blocks is a cache of pages."""
    return replay([Prompt((page,), 1) for page in requested], size, order()).hits


def test_arc_resists_scans():
    """Two pages in turn, then a scan of twenty others in a cache of four, then the two again."""
    requested = [1, 2] * 6 + list(range(10, 30)) + [1, 2]
    assert hits(Arc, requested, 4)[-2:] == [1, 1]
    assert hits(Lru, requested, 4)[-2:] == [0, 0]


def pages_of_arc(requested, size):
    """Hits of ARC's pseudocode (Megiddo and Modha 2003, figure 4), page by page."""
    recent, frequent, recent_ghosts, frequent_ghosts = ([] for _ in range(4))
    target, found = 0.0, []

    def replace(was_frequent):
        length = len(recent)
        if length and (length > target or (was_frequent and length == target)):
            recent_ghosts.append(recent.pop(0))
        else:
            frequent_ghosts.append(frequent.pop(0))

    for page in requested:
        cached = recent if page in recent else frequent
        found.append(int(page in cached))
        if page in cached:
            cached.remove(page)
            frequent.append(page)
        elif page in recent_ghosts:
            target = min(size, target + max(1, len(frequent_ghosts) / len(recent_ghosts)))
            replace(was_frequent=False)
            recent_ghosts.remove(page)
            frequent.append(page)
        elif page in frequent_ghosts:
            target = max(0, target - max(1, len(recent_ghosts) / len(frequent_ghosts)))
            replace(was_frequent=True)
            frequent_ghosts.remove(page)
            frequent.append(page)
        else:
            seen = [recent, recent_ghosts, frequent, frequent_ghosts]
            if len(recent) + len(recent_ghosts) == size:
                if len(recent) < size:
                    recent_ghosts.pop(0)
                    replace(was_frequent=False)
                else:
                    recent.pop(0)
            elif sum(map(len, seen)) >= size:
                if sum(map(len, seen)) == 2 * size:
                    frequent_ghosts.pop(0)
                replace(was_frequent=False)
            recent.append(page)
    return found


def pages_of_greedy_dual(requested, size):
    """Hits of GreedyDual-Size-Frequency with equal sizes and costs; of equals the oldest goes."""
    floor, worth, uses, found = 0, {}, {}, []
    for time, page in enumerate(requested):
        found.append(int(page in worth))
        if page not in worth:
            uses[page] = 0
            if len(worth) == size:
                victim = min(worth, key=worth.__getitem__)
                floor = worth.pop(victim)[0]
        uses[page] += 1
        worth[page] = floor + uses[page], time
    return found


REFERENCES = {Arc: pages_of_arc, CostAware: pages_of_greedy_dual}


@pytest.mark.parametrize("order", REFERENCES)
@given(st.lists(st.integers(0, 11), max_size=80), st.integers(1, 6))
def test_an_order_on_pages_finds_what_its_paper_s_pseudocode_finds(order, requested, size):
    assert hits(order, requested, size) == REFERENCES[order](requested, size)


@pytest.mark.parametrize(
    ("requested", "size", "found"),
    [
        ([4, 1, 1, 3, 4, 1], 2, [0, 0, 1, 0, 0, 0]),  # as libcachesim 0.3.5 finds them
        ([1, 3, 2, 5, 3, 1, 2, 3], 3, [0, 0, 0, 0, 1, 0, 0, 1]),
    ],
)
def test_arc_moves_its_target_before_it_chooses_a_victim(requested, size, found):
    assert hits(Arc, requested, size) == found
