"""Evictions of the radix tree by SGLang's strategies: what goes first, by hand, and beside SGLang's
own tree on random accesses, skipped if it is not installed.
"""

from importlib.util import find_spec
from random import Random

import pytest
from refusals import refuses

from testbed.memory.radix.strategies import STRATEGIES, strategy_named
from testbed.memory.radix.tree import RadixTree

A, B, C = (10, 11), (20, 21), (30, 31)
CONFIGS = [(name, None) for name in STRATEGIES if name != "tlru"]
CONFIGS += [
    ("slru", {"protected_threshold": 3}),
    ("tlru", {"threshold": 1}),
    ("tlru", {"threshold": 4, "next_prompt_estimate": 1}),
    ("tlru", {"threshold": 20, "next_prompt_estimate": 2}),
]


def tree_of(name):
    """Three runs of two blocks, of which A was published twice and B is used last; C, the youngest,
    belongs to the most important request.
    """
    tree = RadixTree(strategy_named(name))
    tree.insert(A, [0, 1])
    tree.insert(B, [2, 3])
    tree.insert(C, [4, 5], priority=3)
    tree.insert(A, [6, 7])
    tree.match(B, 2)
    return tree


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("lru", [4, 5, 0, 1, 2, 3]),
        ("mru", [2, 3, 0, 1, 4, 5]),
        ("fifo", [0, 1, 2, 3, 4, 5]),
        ("filo", [4, 5, 2, 3, 0, 1]),
        ("lfu", [4, 5, 2, 3, 0, 1]),
        ("slru", [4, 5, 2, 3, 0, 1]),
        ("priority", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_leaves_go_in_the_strategys_order(name, order):
    tree = tree_of(name)
    tree.check()
    assert [block for _ in range(3) for block in tree.evict(1)] == order


def test_a_run_that_is_split_keeps_its_age_its_uses_and_its_priority():
    tree = RadixTree(strategy_named("priority"))
    tree.insert((1, 2, 3, 4), [0, 1, 2, 3], priority=2)
    front, _ = tree.match((1, 2), 2)
    assert (front.priority, front.num_published) == (2, 1)
    assert front.made == next(iter(front.children.values())).made


def test_what_a_sequence_published_before_is_not_counted_again():
    tree = RadixTree(strategy_named("lfu"))
    run, _ = tree.insert((1, 2), [0, 1])
    tree.insert((1, 2, 3), [0, 1, 2], num_published=2)
    assert run.num_published == 1


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("arc", None, "radix_eviction_policy=arc"),
        ("lru", {"threshold": 1}, "radix_eviction_policy_config.threshold"),
        ("slru", {"threshold": 1}, "radix_eviction_policy_config.threshold"),
        ("tlru", None, "threshold must be above"),
        ("tlru", {"threshold": 5, "next_prompt_estimate": 5}, "threshold must be above"),
        ("tlru", {"threshold": 5, "next_prompt_estimate": -1}, "not below 0"),
    ],
)
def test_what_sglang_does_not_start_with_is_refused(name, config, message):
    refuses(message, strategy_named, name, config)


def test_tlru_evicts_first_what_lies_within_the_threshold_of_the_farthest_end():
    tree = RadixTree(strategy_named("tlru", {"threshold": 3}))
    tree.insert((*A, 12, 13, 14), [0, 1, 2, 3, 4])
    tree.insert((*A, 12, 13, 14, 15), [0, 1, 2, 3, 4, 5])  # keeps 6 - 3 tokens
    tree.insert((20, 21, 22), [6, 7, 8])
    assert tree.evict(1) == [5]  # though used last of this conversation
    assert tree.evict(1) == [6, 7, 8]  # all of it lies within the threshold
    assert tree.evict(1) == [0, 1, 2, 3, 4]


def test_what_an_evicted_tail_had_reached_is_remembered():
    tree = RadixTree(strategy_named("tlru", {"threshold": 2}))
    tree.insert((10, 11, 12, 13), [0, 1, 2, 3])
    tree.insert((10, 11, 22, 23, 24, 25), [0, 1, 4, 5, 6, 7])
    assert [tree.evict(1), tree.evict(1)] == [[2, 3], [4, 5, 6, 7]]  # the first lies within
    tree.insert(B, [8, 9])
    assert tree.evict(1) == [8, 9]  # the older run stays: 2 of 6 tokens are not within


def test_a_run_that_a_split_has_shortened_may_lie_within_the_threshold():
    tree = RadixTree(strategy_named("tlru", {"threshold": 1}))
    tree.insert(B, [2, 3])
    tree.insert(A, [0, 1])
    tree.match(A, 1)
    tree.check()
    assert tree.evict(1) == [1]


def test_the_threshold_of_tlru_counts_tokens_and_the_tree_blocks():
    tree = RadixTree(strategy_named("tlru", {"threshold": 32}, block_size=16))
    tree.insert(A, [0, 1])
    tree.insert((20, 21, 22), [2, 3, 4])
    tree.match(A, 2)
    assert tree.evict(1) == [0, 1]


def test_a_walk_goes_first_where_most_end_and_takes_a_run_behind_those_below_it():
    tree = RadixTree()
    ends = [tree.insert(key, list(key))[0] for key in (A, B, (*A, 12), C, (*A, 13))]
    places = tree.depth_first([ends[1], ends[0], ends[4], ends[2], tree.root])
    assert places == [3, 2, 1, 0, 4]


@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang 0.5.23 is not installed")
@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_random_accesses_evict_what_sglangs_own_tree_evicts(name, config):
    from sglang_tree import TreeOfSGLang

    random, ours = Random(name), RadixTree(strategy_named(name, config))
    theirs = TreeOfSGLang(name, config)
    next_block = 0
    for _ in range(2000):
        key = tuple(random.choices(range(3), k=random.randint(1, 8)))
        if random.random() < 0.5:
            priority = random.randint(0, 2)
            blocks = [*range(next_block, next_block + len(key))]
            next_block += len(key)
            depth = ours.insert(key, blocks, priority=priority)[1]
            assert theirs.insert(key, blocks, priority) == depth
        elif random.random() < 0.6:
            assert ours.match(key, len(key))[1] == theirs.match(key)
        else:
            num_blocks = random.randint(1, 5)
            assert sorted(ours.evict(num_blocks)) == sorted(theirs.evict(num_blocks))
    ours.check()
