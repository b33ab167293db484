"""Prefix caching by example: what is found, what is written, and what goes first."""

from functools import partial

import pytest
from manual_driver import admit, admit_and_prefill, extend, paged, release, sequence
from refusals import refuses

from testbed.checks.contract.search import POOLS, Harness, histories_of
from testbed.core.errors import OracleError
from testbed.core.sequence import disband, passing_batch
from testbed.core.slots import HOST, Grant, Refusal
from testbed.memory.capabilities import capabilities_of
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, Tier, host
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.by_session import BySession
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Fifo
from testbed.memory.prefix_cache.hash_chain import block_contents
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching

POOL = PoolSpec(num_slots=64, max_len=64, tiers=host(64))


def policy(**options):
    return PrefixCaching(POOL, **{"block_size": 4, "watermark": 0, **options})


def prompt(seq_id, ids, num_tokens=None, tokens_per_id=1, **identity):
    length = num_tokens or len(ids) * tokens_per_id
    return sequence(seq_id, length, prompt_ids=ids, tokens_per_id=tokens_per_id, **identity)


def blocks(caching, seq):
    return [extent.start // 4 for extent in caching.table(seq)]


def found(caching, seq, num_tokens=None):
    (grant,) = admit_and_prefill(caching, [seq], num_tokens or seq.prompt_len)
    caching.check()
    return grant.num_cached


TEXT = tuple(range(100, 120))


def test_only_full_blocks_are_shared():
    caching = policy()
    first, second = prompt(0, TEXT[:10]), prompt(1, (*TEXT[:9], 7, 7, 7))
    assert found(caching, first) == 0
    assert found(caching, second) == 8
    assert blocks(caching, first)[:2] == blocks(caching, second)[:2]
    assert not set(blocks(caching, first)[2:]) & set(blocks(caching, second)[2:])
    assert (caching.usage().live, caching.usage().saved) == (14, 8)


def test_cached_blocks_outlive_their_sequence_until_eviction():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:12]))
    release(caching, first)
    assert caching.usage().cached == 12
    found(
        caching, large := prompt(1, tuple(range(56)))
    )  # 14 of 16 blocks: one cached block has to go, the last one
    assert (caching.usage().cached, caching.counters()["evictions"]) == (8, 1)
    release(caching, large)
    assert found(caching, prompt(2, TEXT[:13])) == 8


@pytest.mark.parametrize(("is_listened_to", "steps"), [(False, 24), (True, 12)])
def test_a_span_continues_past_evictions_only_without_a_listener(is_listened_to, steps):
    """Of 16 blocks of 4 tokens 10 are in use, 3 are free, and 3 are cached."""
    caching, events = policy(), []
    found(caching, first := prompt(0, TEXT[:12]))
    release(caching, first)
    found(caching, second := prompt(1, tuple(range(40))))
    if is_listened_to:
        caching.report_cache(lambda codes, is_stored: events.extend(is_stored for _ in codes))
    batch = passing_batch([second])
    assert caching.guaranteed_steps(batch) == steps
    disband(batch)
    extend(caching, [second], 12)
    assert events == []
    extend(caching, [second], 1)
    assert events == [False] * is_listened_to
    assert caching.counters()["evictions"] == 1


def test_block_of_the_last_prompt_token_is_recomputed():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:8]))
    again = prompt(1, TEXT[:8])
    assert found(caching, again) == 4
    assert blocks(caching, first)[0] == blocks(caching, again)[0]
    assert blocks(caching, first)[1] != blocks(caching, again)[1]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_one_id_can_stand_for_sixteen_tokens(size):
    caching = policy(block_size=size)
    found(caching, prompt(0, (5, 6), 32, 16))
    assert found(caching, prompt(1, (5, 7), 32, 16)) == 16
    assert found(caching, prompt(2, (6, 5), 16, 16)) == 0


def test_block_size_must_match_tokens_per_id():
    reported = "block_size=4: does not go with a trace whose ids name 6 tokens"
    refuses(reported, policy().admit, [prompt(0, (1, 2), 12, 6)], 12)
    assert block_contents((1, 2, 3, 4), 2, 8, 4) == [(1, 2), (3, 4)]
    assert block_contents((5, 6), 16, 27, 4) == [20, 21, 22, 23, 24, 25]


def test_hit_beyond_the_chunk_needs_no_free_blocks():
    caching = policy(watermark=0.25)
    found(caching, first := prompt(0, TEXT))
    release(caching, first)
    found(caching, prompt(1, tuple(range(32))))  # 8 blocks of 16; 5 cached, 3 free, 4 to be kept
    assert found(caching, prompt(2, (*TEXT, 1)), 1) == 16


def test_counters_of_lookups_and_hits():
    caching = policy()
    found(caching, prompt(0, TEXT[:10]))
    found(caching, prompt(1, TEXT[:10]))
    counts = {
        "prompts": 2,
        "blocks": 6,
        "hit_blocks": 2,
        "tokens": 20,
        "hit_tokens": 8,
        "evictions": 0,
    }
    assert caching.counters() == counts


def test_belady_needs_future_prompts_and_others_do_not_read_them():
    def unread():
        pytest.fail("the prompts were read")
        yield

    policy(eviction=Fifo()).foresee_prompts(unread())
    without_future = policy(eviction=Belady())
    refuses("foresee", without_future.admit, [prompt(0, TEXT)], 20, error=OracleError)


def test_belady_keeps_the_next_used_blocks():
    story, other, large = TEXT[:12], tuple(range(12)), tuple(range(200, 248))
    caching = policy(eviction=Belady())
    trace = [story, other, large, other, story]
    caching.foresee_prompts((ids, 1, len(ids)) for ids in trace)
    hits = []
    for seq_id, ids in enumerate(trace):
        seq = prompt(seq_id, ids)
        hits.append(found(caching, seq))
        release(caching, seq)
    assert hits == [0, 0, 0, 8, 4]


@pytest.mark.parametrize(
    ("order", "closed", "kept"),
    [(Lru, None, (0, 8, 8)), (BySession, None, (8, 0, 8)), (BySession, 1, (0, 8, 8))],
)
def test_the_session_that_has_ended_goes_first_and_then_the_one_idle_longest(order, closed, kept):
    """Session 1 comes, then session 2, then session 1 with other content; then two blocks are
    needed.
    """
    caching = paged(6, PrefixCaching, eviction=order())
    texts = [tuple(range(start, start + 8)) for start in (0, 100, 200)]
    for seq_id, session in enumerate((1, 2, 1)):
        seq = prompt(seq_id, texts[seq_id], session=session)
        found(caching, seq)
        release(caching, seq)
    if closed is not None:
        caching.close_session(closed)
    found(caching, prompt(3, tuple(range(300, 308))))
    assert tuple(caching.lookup(prompt(4, (*text, 1))).num_cached(9) for text in texts) == kept


def test_a_session_is_idle_since_its_sequence_was_swapped_out():
    """Session 1 comes, then session 2, then session 1 with other content, which goes to the host:
    what session 2 left goes first.
    """
    pool = PoolSpec(24, 64, host(64))
    caching = PrefixCaching(pool, block_size=4, watermark=0, eviction=BySession())
    texts = [tuple(range(start, start + 8)) for start in (0, 100, 200)]
    for seq_id, session in enumerate((1, 2)):
        found(caching, seq := prompt(seq_id, texts[seq_id], session=session))
        release(caching, seq)
    found(caching, seq := prompt(2, texts[2], session=1))
    assert isinstance(caching.move([seq], HOST), Grant)
    found(caching, prompt(3, tuple(range(300, 308))))
    kept = tuple(caching.lookup(prompt(4, (*text, 1))).num_cached(9) for text in texts)
    assert kept == (8, 0, 8)


@pytest.mark.parametrize("kind", [Paged, PrefixCaching, OutputCaching, TieredCaching])
def test_blocks_lie_where_single_steps_put_them(kind):
    """The cost of transfers depends on the places of blocks: long spans that evict must not change
    it.
    """

    def tables(steps):
        pool = kind(PoolSpec(24 * 4, 64, (*host(64), Tier("dram", 256))), block_size=4, watermark=0)
        found(pool, first := prompt(0, tuple(range(48))))
        release(pool, first)
        seqs = [prompt(1, (-1,) * 3), prompt(2, (-2,) * 6)]
        for seq in seqs:
            found(pool, seq)
        for num_tokens in steps:
            extend(pool, seqs, num_tokens)
        return [pool.table(seq) for seq in seqs]

    assert tables([40]) == tables([1] * 40)


def test_watermark_applies_to_evictable_blocks_too():
    caching = paged(10, PrefixCaching, watermark=0.2)
    found(caching, first := prompt(0, TEXT[:16]))
    release(caching, first)
    found(caching, prompt(1, TEXT[16:20]))
    assert admit(caching, [prompt(2, tuple(range(32)))], 32) is Refusal.LATER
    assert (
        admit(caching, [sequence(2, 32)], 32) is Refusal.LATER
    )  # nor for content that no other sequence has
    assert not isinstance(admit(caching, [prompt(3, tuple(range(28)))], 28), Refusal)


@pytest.mark.parametrize("kind", [Paged, PrefixCaching, OutputCaching, TieredCaching])
def test_lookup_and_fits_say_what_an_admission_finds_and_whether_it_is_granted(kind):
    class Asked(kind):
        num_asked = 0

        def admit(self, seqs, num_tokens, *hit):
            cache_hit = capabilities_of(self).lookup(seqs[0])
            fits = self.fits(seqs[0], num_tokens, cache_hit)
            answers = super().admit(seqs, num_tokens, *hit)
            Asked.num_asked += 1
            if len(seqs) == 1 and not seqs[0].registered_prefix and answers is not Refusal.LOADING:
                assert fits == isinstance(answers, list)
                assert not fits or answers[0].num_cached <= cache_hit.num_cached(num_tokens)
            return answers

    make = partial(Asked, block_size=8)
    for pool in POOLS[:2]:
        histories = histories_of(make, pool)
        for _ in range(8):
            Harness(make, pool, thorough=False).run(histories.draw())
    assert Asked.num_asked > 50


CORRUPTED = {
    "children are miscounted": lambda policy, index: setattr(index, "num_kept", 1),
    "holders are lost": lambda policy, index: index.holder.pop(),
    "not found by its content": lambda policy, index: setattr(index.holder[0], "content", 0),
    "blocks and nodes differ": lambda policy, index: index.holder.reverse(),
    "a tombstone with nothing behind it": lambda policy, index: (
        setattr(index.holder[-1], "block", -1),
        index.holder.pop(),
    ),
    "blocks of the dram were lost": lambda policy, index: policy._hierarchy.tiers[0]._free.pop(),
    "the dram pins what it does not have": lambda policy, index: policy._hierarchy.tiers[
        0
    ].pins.add([0]),
    "an evicted block was not written": lambda policy, index: policy._hierarchy.written.append(
        (0, 0)
    ),
}


@pytest.mark.parametrize("message", CORRUPTED)
def test_check_notices_what_tables_and_counts_do_not_show(message):
    caching = TieredCaching(PoolSpec(20, 64, (Tier("dram", 64),)), block_size=4, watermark=0)
    found(caching, prompt(0, TEXT))
    CORRUPTED[message](caching, caching._cache.index)
    with pytest.raises(AssertionError, match=message):
        caching.check()


def test_arc_moves_its_target_before_the_victim_of_a_miss_on_a_ghost():
    """Prompts of one readable block in a pool of two, as pages of the paper's pseudocode."""
    caching = PrefixCaching(PoolSpec(8, max_len=8), block_size=4, watermark=0, eviction=Arc())
    found_blocks = []
    for number, page in enumerate([4, 1, 1, 3, 4, 1]):
        seq = prompt(number, [page, page, page, page, 0])
        (grant,) = caching.admit([seq], 4)
        caching.publish(seq, 4)
        release(caching, seq)
        found_blocks.append(grant.num_cached // 4)
    assert found_blocks == [0, 0, 1, 0, 0, 0]
