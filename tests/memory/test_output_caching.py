"""Prefix caching with generated blocks by example: what a sequence finds of its own, and what others do not."""

from manual_driver import admit, admit_and_prefill, extend, fork, release, samples, sequence

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
    for kind, found in ((PrefixCaching, 8), (OutputCaching, 16)):
        policy, seq = preempted(10, 8, TEXT[:10], kind)
        assert policy.usage().cached == found
        assert found_again(policy, seq, 19) == found


def test_hit_on_generated_blocks_can_exceed_the_chunk():
    policy, seq = preempted(10, 8, TEXT[:10])
    assert found_again(policy, seq, 6) == 16


def test_prompt_without_ids_is_cached_for_its_sequence_only():
    policy, seq = preempted(8, 1)
    assert found_again(policy, sequence(1, 8), 8) == 0
    assert found_again(policy, seq, 10) == 8
    assert policy.counters()["prompts"] == 0  # nobody could have found anything


def test_only_full_stored_blocks_are_cached_until_eviction():
    policy, seq = preempted(3, 12)
    assert policy.usage().cached == 12
    admit_and_prefill(policy, [large := sequence(1, 60)], 60)
    release(policy, large)
    assert found_again(policy, seq, 16) == 4  # the end went first


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


def test_recomputed_samples_publish_only_their_prompt():
    policy, seqs = caching(), samples(8)
    for seq in seqs:
        seq.prompt_ids = TEXT[:8]
    admit_and_prefill(policy, seqs, 13)  # five generated tokens of each are computed again
    for seq in seqs:
        release(policy, seq)
    policy.check()
    assert policy.usage().cached == 8


def test_swap_out_and_swap_in_keep_generated_blocks_cached():
    policy = caching()
    admit_and_prefill(policy, [seq := sequence(0, 8, prompt_ids=TEXT[:8])], 8)
    extend(policy, [seq], 8)
    policy.move([seq], HOST)
    assert policy.usage().cached == 8
    policy.move([seq], DEVICE)
    policy.publish(seq, seq.num_stored)
    preempt(policy, seq)
    assert found_again(policy, seq, 17) == 16
