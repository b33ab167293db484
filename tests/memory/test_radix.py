"""SGLang's radix cache: runs that are split, locked, evicted whole; the contract at each block
size.
"""

from functools import partial

import pytest

from testbed import check
from testbed.checks.contract.search import check_policy
from testbed.core.request import Request
from testbed.core.sequence import Sequence
from testbed.core.slots import Refusal
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.radix.radix import Radix
from testbed.memory.radix.tree import RadixTree, common_blocks


def stored(tree, *stories):
    """Store stories, each in blocks that no other has."""
    blocks = iter(range(1000))
    for story in stories:
        tree.insert(tuple(story), [next(blocks) for _ in story])
        tree.check()
    return tree


@pytest.mark.parametrize(
    ("content", "common"), [("abcd", 4), ("abcx", 3), ("abxx", 2), ("axxx", 1), ("ab", 2)]
)
def test_runs_have_a_common_beginning(content, common):
    assert common_blocks(tuple("abcd"), tuple(content), 0, len(content)) == common


def test_a_run_is_split_where_two_contents_differ_and_none_is_stored_twice():
    tree = stored(RadixTree(), "abcdef", "abcxy")
    assert sorted("".join(run.key) for run in tree) == ["abc", "def", "xy"]
    assert tree.num_evictable == 8
    assert tree.find(tuple("abcdxx"), 6)[1] == 4
    assert sorted("".join(run.key) for run in tree) == ["abc", "def", "xy"]  # find changes nothing


def test_the_least_recently_used_leaf_is_evicted_whole_and_then_what_it_hung_on():
    tree = stored(RadixTree(), "abcdef", "abcxy", "q")
    tree.match(tuple("abcdef"), 6)
    assert len(tree.evict(1)) == 2  # xy, although one block was wanted
    assert len(tree.evict(2)) == 4  # q, then def: abc is no leaf before
    assert tree.num_evictable == 3


def test_a_lock_keeps_a_run_and_all_before_it():
    tree = stored(RadixTree(), "abcdef", "abcxy")
    run, depth = tree.match(tuple("abcd"), 4)
    tree.lock(run)
    assert (depth, tree.num_evictable) == (4, 4)
    assert len(tree.evict(100)) == 4
    tree.unlock(run)
    assert len(tree.evict(100)) == 4


def test_what_a_split_cut_off_is_older_than_the_new_leaf():
    tree = stored(RadixTree(), "abcdef", "abcxy")
    assert tree.evict(1) == [3, 4, 5]  # def


def test_the_order_of_eviction_is_kept_through_many_uses():
    """Each use makes an older entry of the queue of leaves void; void ones are dropped in time."""
    tree = stored(RadixTree(), "abc", "de", "f")
    for _ in range(1100):
        tree.match(tuple("abc"), 3)
    tree.check()
    assert [tree.evict(1) for _ in range(3)] == [[3, 4], [5], [0, 1, 2]]


def sequence(seq_id, prompt, **values):
    request = Request(seq_id, 0, len(prompt), 9, prompt_ids=tuple(map(ord, prompt)), **values)
    return Sequence(seq_id, request.incoming)


def admitted(policy, seq, num_tokens):
    """The sequence with slots for num_tokens tokens, all of which are stored and published."""
    answer = policy.admit([seq], num_tokens)
    seq.set_counts(num_slots=num_tokens, num_stored=num_tokens)
    policy.publish(seq, num_tokens)
    policy.check()
    return answer[0].num_cached


def test_a_prompt_finds_another_up_to_any_token_but_its_last():
    policy = Radix(PoolSpec(40, 100))
    assert admitted(policy, sequence(0, "abcdef"), 6) == 0
    assert policy.lookup(sequence(1, "abcdef")).num_cached(6) == 5
    assert policy.lookup(sequence(2, "abcxyz")).num_cached(6) == 3


@pytest.mark.parametrize("prompt", ["abcd", "a"])
def test_an_answer_stays_and_is_evicted_without_its_prompt(prompt):
    policy, length = Radix(PoolSpec(10, 100)), len(prompt)
    seq = sequence(0, prompt)
    admitted(policy, seq, length + 4)  # four tokens of the answer
    policy.release(seq)
    assert policy.usage().cached == length + 4
    policy.make_free(10 - length - 3)  # one more than are free
    assert policy.usage().free == 10 - length
    assert policy.lookup(sequence(1, prompt + "x")).num_cached(length + 1) == length


def test_equal_prompts_computed_twice_are_stored_once():
    policy = Radix(PoolSpec(40, 100))
    first, second = sequence(0, "abcdef"), sequence(1, "abcdef")
    for seq in (first, second):
        policy.admit([seq], 6)
        seq.set_counts(num_slots=6, num_stored=6)
    assert policy.usage().held == 12
    policy.publish(first, 6)
    policy.publish(second, 6)
    policy.check()
    assert (policy.usage().held, policy.usage().saved) == (6, 6)
    assert policy.table(first) == policy.table(second)


def test_what_is_pinned_is_not_evicted():
    policy = Radix(PoolSpec(10, 100))
    seq = sequence(0, "abcdef")
    admitted(policy, seq, 6)
    policy.release(seq)
    hit = policy.match(sequence(1, "abcdxx"), 5)
    policy.pin(hit)
    policy.make_free(10)
    assert (policy.usage().held, policy.usage().free) == (4, 6)
    policy.unpin(hit)
    policy.make_free(10)
    assert policy.usage().cached == 0


def test_a_hit_is_not_both_read_and_evicted():
    policy = Radix(PoolSpec(8, 100))
    seq = sequence(0, "abcdef")
    admitted(policy, seq, 6)
    policy.release(seq)
    asked = sequence(1, "abcdefghi")
    assert policy.admit([asked], 9) == Refusal.NEVER
    assert admitted(policy, sequence(2, "abcdefgh"), 8) == 6


@pytest.mark.usefixtures("few_requests")
def test_the_contract_is_kept_and_fast_equals_slow():
    one_pool = {"num_slots": 200, "max_len": 64, "host_slots": 60}
    assert check(Radix, num_examples=1, block_size=1, **one_pool) is None


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_contract_is_kept_by_pages(block_size):
    assert check_policy(partial(Radix, block_size=block_size), max_examples=2) is None


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_the_contract_is_kept_in_longer_histories_and_two_processes(block_size):
    assert check(Radix, block_size=block_size, num_examples=15) is None


def test_where_nothing_is_evicted_it_finds_what_prefix_caching_finds():
    prompts = ["abcdef", "abcxyz", "abcdefgh", "q", "abcxyzz", "abcdef"]

    def found(policy):
        hits = []
        for number, prompt in enumerate(prompts):
            seq = sequence(number, prompt)
            hits.append(admitted(policy, seq, len(prompt)))
            policy.release(seq)
        return hits

    pool = PoolSpec(100, 100)
    assert found(Radix(pool)) == found(PrefixCaching(pool, block_size=1, watermark=0.0))
    assert sum(found(Radix(pool))) == 3 + 6 + 6 + 5
