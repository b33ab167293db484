"""Prefix caching with generated blocks: what a sequence finds of its own, and the queue of blocks
without a holder.
"""

from itertools import islice

import pytest
from manual_driver import admit, admit_and_prefill, extend, fork, paged, release, sequence
from releases import UNCACHED_FIRST

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.hash_chain import block_contents, generated_contents
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.vllm.releases import DEFAULT

TEXT = tuple(range(100, 120))


def caching(kind=OutputCaching):
    return paged(kind=kind, host_blocks=16)


def preempt(policy, seq):
    """Recompute: all its tokens are to be computed again."""
    release(policy, seq)
    seq.num_preemptions += 1


def preempted(prompt_len, num_generated, ids=None, kind=OutputCaching):
    """A cache, and a sequence that was preempted after so many generated tokens."""
    policy, seq = caching(kind), sequence(0, prompt_len, prompt_ids=ids)
    admit_and_prefill(policy, [seq], prompt_len)
    extend(policy, [seq], num_generated)
    preempt(policy, seq)
    return policy, seq


def found_again(policy, seq, num_tokens):
    (grant,) = admit(policy, [seq], num_tokens)
    policy.check()
    return grant.num_cached


def test_preempted_sequence_hits_prompt_and_generated_blocks():
    for kind, num_found in ((PrefixCaching, 8), (OutputCaching, 16)):
        policy, seq = preempted(10, 8, TEXT[:10], kind)
        assert policy.usage().cached == num_found
        assert found_again(policy, seq, 19) == num_found


def test_prompt_without_ids_is_cached_for_its_sequence_only():
    policy, seq = preempted(8, 1)
    assert found_again(policy, sequence(1, 8), 8) == 0
    assert found_again(policy, seq, 10) == 8
    assert policy.counters()["prompts"] == 0  # no sequence could have found anything


def test_generated_blocks_of_finished_sequences_are_not_hit():
    policy = caching()
    admit_and_prefill(policy, [seq := sequence(0, 4, prompt_ids=TEXT[:4])], 4)
    extend(policy, [seq], 8)
    release(policy, seq)
    assert policy.usage().cached == 12
    assert found_again(policy, sequence(1, 12, prompt_ids=TEXT[:12]), 12) == 4


def test_samples_publish_only_their_prompt():
    policy = caching()
    parent, child = (sequence(i, 8, prompt_ids=TEXT[:8]) for i in range(2))
    admit_and_prefill(policy, [parent], 8)
    fork(policy, parent, child)
    extend(policy, [parent, child], 8)
    for seq in (parent, child):
        preempt(policy, seq)
    assert policy.usage().cached == 8
    policy.check()


def cache(num_blocks, **options):
    return OutputCaching(PoolSpec(num_blocks * 2, 100), block_size=2, **options)


def admitted(policy, seq_id, *content):
    """A sequence whose prompt has this content, computed; how many of its tokens were found."""
    seq = sequence(seq_id, len(content), prompt_ids=content)
    (grant,) = admit_and_prefill(policy, [seq], len(content))
    policy.check()
    return seq, grant.num_cached


def found(policy, *content):
    """Tokens of such a prompt that would be found."""
    hit = policy.lookup(sequence(99, len(content), prompt_ids=content))
    return hit.num_cached(len(content))


@pytest.mark.parametrize(("in_turn", "kept"), [(True, 0), (False, 4)])
def test_what_a_preempted_sequence_leaves_comes_too_late_for_those_before_it(in_turn, kept):
    """Of four blocks one is cached and not held. The first sequence needs a block, and the second
    lacks one and is preempted, which frees a block without content.
    """
    policy = paged(4, OutputCaching, release=UNCACHED_FIRST)
    gone, first, second = sequence(0, 5, prompt_ids=TEXT[:5]), sequence(1, 4), sequence(2, 6)
    for seq in (gone, first, second):
        admit_and_prefill(policy, [seq], seq.prompt_len)
        if seq is gone:
            release(policy, gone)
    if in_turn:
        assert policy.reserve_in_turn([(first, 1), (second, 3)]) == 1
    release(policy, second)
    extend(policy, [first], 1)
    assert policy.lookup(gone).num_cached(5) == kept


@pytest.mark.parametrize(("release", "kept"), [(DEFAULT, 0), (UNCACHED_FIRST, 2)])
def test_eviction_of_blocks_without_content_follows_the_order(release, kept):
    policy = cache(4, release=release)
    cached, _ = admitted(policy, 0, 1, 2, 3)  # a full block and a partial one
    partial, _ = admitted(policy, 1, 4)
    policy.release(cached)
    policy.release(partial)
    admitted(policy, 2, 5, 6, 7, 8, 9, 10)  # three blocks: the one never used, then by the order
    assert found(policy, 1, 2, 3) == kept


def test_with_another_eviction_order_free_blocks_are_taken_first_and_one_copy_is_kept():
    policy = cache(4, eviction=Arc())
    first, _ = admitted(policy, 0, 1, 2)
    policy.release(first)
    again, _ = admitted(policy, 1, 1, 2)
    policy.release(again)
    assert policy.usage().cached == 2


def test_equal_contents_lie_in_two_blocks_and_the_second_is_found_when_the_first_has_gone():
    policy = cache(3)
    first, _ = admitted(policy, 0, 1, 2)
    second, num_found = admitted(
        policy, 1, 1, 2
    )  # its last token is computed, so its block is its own
    assert num_found == 0
    policy.release(first)
    policy.release(second)
    assert policy.usage().cached == 4
    admitted(policy, 2, 7, 8, 9, 10)  # takes the block that was never used, and the first copy
    assert found(policy, 1, 2, 3) == 2
    assert policy.counters()["evictions"] == 1


def test_a_found_block_leaves_the_queue_and_comes_back_at_its_end():
    policy = cache(4)
    for seq_id, content in enumerate([(1, 2), (3, 4)]):
        seq, _ = admitted(policy, seq_id, *content)
        policy.release(seq)
    seq, num_found = admitted(policy, 2, 1, 2, 5)
    assert num_found == 2
    policy.release(seq)
    admitted(policy, 3, 6, 7, 8, 9)  # what was never used and (3, 4) come before (1, 2)
    assert (found(policy, 3, 4, 9), found(policy, 1, 2, 9)) == (0, 2)


@pytest.mark.parametrize(("block_size", "each"), [(4, 1), (4, 4), (4, 2), (4, 8), (1, 3)])
def test_blocks_of_an_answer_are_those_of_a_prompt_that_contains_it(block_size, each):
    """15 ids of prompt and answer; with names_next the id behind each block is part of it."""
    ids, whole = tuple(range(5)), (*range(5), *range(-35, -25))
    request = Incoming(0, 0, 5 * each, prompt_ids=ids, tokens_per_id=each, answer_id=-40)
    first = 5 * each // block_size
    expected = block_contents(whole, each, 15 * each, block_size)[first:-1]

    def generated(**options):
        return islice(generated_contents(Sequence(0, request), block_size, first, **options), 7)

    assert list(generated())[: len(expected)] == list(expected)[:7]
    named = generated(names_next=True)
    for block, (content, plain) in enumerate(zip(named, expected, strict=False), first):
        behind = whole[(block + 1) * block_size // each]
        assert content == (*((plain,) if isinstance(plain, int) else plain), behind)
