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


@pytest.mark.parametrize("name", ["tlru", "arc"])
def test_other_strategies_are_refused_by_name(name):
    refuses(f"radix_eviction_policy={name}", strategy_named, name)


def test_a_walk_goes_first_where_most_end_and_takes_a_run_behind_those_below_it():
    tree = RadixTree()
    ends = [tree.insert(key, list(key))[0] for key in (A, B, (*A, 12), C, (*A, 13))]
    places = tree.depth_first([ends[1], ends[0], ends[4], ends[2], tree.root])
    assert places == [3, 2, 1, 0, 4]


@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang 0.5.23 is not installed")
@pytest.mark.parametrize("name", STRATEGIES)
def test_random_accesses_evict_what_sglangs_own_tree_evicts(name):
    from testbed.experiments.real.lockstep.sglang_tree import TreeOfSGLang

    random, ours, theirs = Random(name), RadixTree(strategy_named(name)), TreeOfSGLang(name)
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
