"""Prefix caching with generated blocks by example: what a sequence finds of its own, and what others do not."""

from by_hand import admit, extend, fork, release, samples, seat, sequence

from testbed.core.slots import DEVICE, HOST
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching

POOL = PoolSpec(num_slots=64, max_len=64, tiers=host(64))
TEXT = tuple(range(100, 120))


def caching(kind=OutputCaching):
    return kind(POOL, block_size=4, watermark=0)


def preempt(policy, seq):
    """Recompute: all its tokens are to be computed again."""
    release(policy, seq)
    seq.num_preemptions += 1


def found_again(policy, seq, num_tokens):
    (grant,) = admit(policy, [seq], num_tokens)
    policy.check()
    return grant.num_cached


def test_a_preempted_sequence_finds_prompt_and_generated_blocks_again():
    for kind, found in ((PrefixCaching, 8), (OutputCaching, 16)):
        policy = caching(kind)
        seat(policy, [seq := sequence(0, 10, prompt_ids=TEXT[:10])], 10)
        extend(policy, [seq], 8)
        preempt(policy, seq)
        assert policy.usage().cached == found
        assert found_again(policy, seq, 19) == found


def test_a_hit_on_generated_blocks_may_reach_beyond_the_chunk():
    policy = caching()
    seat(policy, [seq := sequence(0, 10, prompt_ids=TEXT[:10])], 10)
    extend(policy, [seq], 8)
    preempt(policy, seq)
    assert found_again(policy, seq, 6) == 16


def test_a_prompt_without_ids_is_found_by_its_own_sequence_only():
    policy = caching()
    seat(policy, [seq := sequence(0, 8)], 8)
    extend(policy, [seq], 1)
    preempt(policy, seq)
    assert found_again(policy, sequence(1, 8), 8) == 0
    assert found_again(policy, seq, 10) == 8
    assert policy.counters()["prompts"] == 0  # nobody could have found anything


def test_only_full_blocks_of_stored_tokens_are_kept_and_an_evicted_one_ends_the_hit():
    policy = caching()
    seat(policy, [seq := sequence(0, 3)], 3)
    extend(policy, [seq], 12)
    preempt(policy, seq)
    assert policy.usage().cached == 12
    seat(policy, [large := sequence(1, 60)], 60)
    release(policy, large)
    assert found_again(policy, seq, 16) == 4  # the end went first


def test_what_an_ended_sequence_leaves_is_found_by_nobody():
    policy = caching()
    seat(policy, [seq := sequence(0, 4, prompt_ids=TEXT[:4])], 4)
    extend(policy, [seq], 8)
    release(policy, seq)
    assert policy.usage().cached == 12
    assert found_again(policy, sequence(1, 12, prompt_ids=TEXT[:12]), 12) == 4


def test_samples_publish_their_prompt_alone():
    policy = caching()
    parent, child = (sequence(i, 8, prompt_ids=TEXT[:8]) for i in range(2))
    seat(policy, [parent], 8)
    fork(policy, parent, child)
    extend(policy, [parent, child], 8)
    for seq in (parent, child):
        preempt(policy, seq)
    assert policy.usage().cached == 8
    policy.check()


def test_the_last_token_of_a_prompt_of_whole_blocks_is_computed_in_a_block_of_its_own():
    policy = caching()
    first, second = (sequence(i, 8, prompt_ids=TEXT[:8]) for i in range(2))
    seat(policy, [first], 8)
    assert seat(policy, [second], 8)[0].num_cached == 4
    assert policy.table(first)[1] != policy.table(second)[1]


def test_samples_that_come_back_together_publish_their_prompt_alone_too():
    policy, seqs = caching(), samples(8)
    for seq in seqs:
        seq.content = TEXT[:8]
    seat(policy, seqs, 13)  # five generated tokens of each are computed again
    for seq in seqs:
        release(policy, seq)
    policy.check()
    assert policy.usage().cached == 8


def test_nothing_generated_is_left_behind_by_a_move_to_the_host():
    policy = caching()
    seat(policy, [seq := sequence(0, 8, prompt_ids=TEXT[:8])], 8)
    extend(policy, [seq], 8)
    policy.move([seq], HOST)
    assert policy.usage().cached == 8
    policy.move([seq], DEVICE)
    policy.computed(seq, seq.stored)
    preempt(policy, seq)
    assert found_again(policy, seq, 17) == 16
