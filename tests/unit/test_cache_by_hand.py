"""Blocks of a prefix cache, found, held, evicted and published: by hand, on pools of a few blocks of four slots."""

from by_hand import admit, release, seat, sequence

from testbed.core.slots import DEVICE, HOST, Refusal
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching

TEXT = tuple(range(100, 140))


def cache(num_blocks=16, watermark=0.0):
    return PrefixCaching(PoolSpec(num_blocks * 4, 64, host(64)), block_size=4, watermark=watermark)


def found(policy, seq_id, ids, num_tokens=None, **request):
    seq = sequence(seq_id, len(ids), prompt_ids=ids, **request)
    (grant,) = seat(policy, [seq], num_tokens or len(ids))
    policy.check()
    return seq, grant.num_cached


def test_a_block_that_is_not_full_is_found_by_nobody():
    policy = cache()
    found(policy, 0, TEXT[:12], num_tokens=6)
    assert found(policy, 1, TEXT[:12])[1] == 4


def test_cached_blocks_are_live_again_when_they_are_held_again():
    policy = cache()
    release(policy, found(policy, 0, TEXT[:12])[0])
    assert (policy.usage().live, policy.usage().cached) == (0, 12)
    found(policy, 1, TEXT[:9], num_tokens=5)
    assert (policy.usage().live, policy.usage().held, policy.usage().cached) == (8, 8, 4)


def test_the_end_of_a_chain_is_evicted_before_its_root():
    policy = cache(6)
    release(policy, found(policy, 0, TEXT[:16])[0])
    release(policy, found(policy, 1, TEXT[20:36])[0])  # four blocks: two of the four cached ones go
    assert policy.counters()["evictions"] == 2
    assert found(policy, 2, TEXT[:17])[1] == 8


def test_the_watermark_holds_where_blocks_could_be_evicted():
    policy = cache(10, watermark=0.2)
    release(policy, found(policy, 0, TEXT[:16])[0])
    found(policy, 1, TEXT[20:24])
    assert admit(policy, [sequence(2, 32, prompt_ids=tuple(range(32)))], 32) is Refusal.LATER
    assert admit(policy, [sequence(2, 32)], 32) is Refusal.LATER  # nor for content that nobody else has
    assert not isinstance(admit(policy, [sequence(3, 28, prompt_ids=tuple(range(28)))], 28), Refusal)


def test_the_hit_rate_counts_what_was_found_and_recomputed_prompts_not():
    policy = cache()
    first, _ = found(policy, 0, TEXT[:12])
    second, hit = found(policy, 1, (*TEXT[:8], 1, 2, 3, 4))
    assert hit == 8
    release(policy, second)
    second.num_preemptions += 1
    seat(policy, [second], 12)
    counts = policy.counters()
    assert (counts["prompts"], counts["tokens"], counts["hit_tokens"]) == (2, 24, 8)
    release(policy, first)
    policy.check()


def test_who_built_on_an_equal_block_that_is_gone_publishes_its_own():
    """Two prompts alike are admitted before either is computed, so each has blocks of its own; the first one leaves."""
    policy, first, second = cache(6), *(sequence(i, 8, prompt_ids=TEXT[:8]) for i in range(2))
    for seq in (first, second):
        admit(policy, [seq], 8)
    for seq in (first, second):
        policy.computed(seq, 4)
    release(policy, first)
    release(policy, found(policy, 2, TEXT[20:37], num_tokens=16)[0])
    assert policy.counters()["evictions"] == 1
    policy.computed(second, 8)
    policy.check()
    assert found(policy, 3, TEXT[:9])[1] == 8


def test_blocks_that_come_back_from_the_host_take_the_place_of_their_cached_copies():
    policy = cache()
    seq, _ = found(policy, 0, TEXT[:10])
    policy.move([seq], HOST)
    assert (policy.usage().held, policy.usage().cached) == (0, 8)
    policy.move([seq], DEVICE)
    policy.computed(seq, 10)
    policy.check()
    assert (policy.usage().held, policy.usage().cached, policy.usage().free) == (12, 0, 52)
    found(policy, 1, TEXT[:10])
    assert policy.usage().saved == 8
