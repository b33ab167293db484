"""Prefix caching by example: what is found, what is written, and what goes first."""

import pytest
from by_hand import admit, extend, release, seat, sequence

from testbed.core.errors import InputError
from testbed.core.foresight import OracleError
from testbed.core.slots import DEVICE, HOST, Grant, Refusal
from testbed.memory.policy import PoolSpec, UnsupportedError, host
from testbed.memory.prefix_cache.eviction.belady import Belady
from testbed.memory.prefix_cache.eviction.fifo import Fifo
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex, block_contents

POOL = PoolSpec(num_slots=64, max_len=64, tiers=host(64))


def policy(**options):
    return PrefixCaching(POOL, **{"block_size": 4, "watermark": 0, **options})


def prompt(seq_id, ids, num_tokens=None, tokens_per_id=1, prefix=0):
    length = num_tokens or len(ids) * tokens_per_id
    return sequence(seq_id, length, prefix=prefix, prompt_ids=ids, tokens_per_id=tokens_per_id)


def blocks(caching, seq):
    return [extent.start // 4 for extent in caching.table(seq)]


def found(caching, seq, num_tokens=None):
    (grant,) = seat(caching, [seq], num_tokens or seq.prompt_len)
    caching.check()
    return grant.num_cached


TEXT = tuple(range(100, 120))


def test_full_blocks_are_shared_and_the_rest_is_not():
    caching = policy()
    first, second = prompt(0, TEXT[:10]), prompt(1, (*TEXT[:9], 7, 7, 7))
    assert found(caching, first) == 0
    assert found(caching, second) == 8
    assert blocks(caching, first)[:2] == blocks(caching, second)[:2]
    assert not set(blocks(caching, first)[2:]) & set(blocks(caching, second)[2:])
    assert (caching.usage().live, caching.usage().saved) == (14, 8)


def test_a_hit_outlives_its_sequence_until_it_is_evicted():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:12]))
    release(caching, first)
    assert caching.usage().cached == 12
    found(caching, large := prompt(1, tuple(range(56))))  # 14 of 16 blocks: one cached block has to go, the last one
    assert (caching.usage().cached, caching.counters()["evictions"]) == (8, 1)
    release(caching, large)
    assert found(caching, prompt(2, TEXT[:13])) == 8


def test_the_block_of_the_last_prompt_token_is_computed_again():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:8]))
    again = prompt(1, TEXT[:8])
    assert found(caching, again) == 4
    assert blocks(caching, first)[0] == blocks(caching, again)[0]
    assert blocks(caching, first)[1] != blocks(caching, again)[1]


def test_after_recompute_the_whole_prompt_is_found():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:8]))
    extend(caching, [first], 3)
    release(caching, first)
    first.num_preemptions += 1
    assert found(caching, first, 11) == 8
    assert caching.counters()["prompts"] == 1


def test_a_hit_may_reach_beyond_the_chunk():
    caching = policy()
    found(caching, prompt(0, TEXT[:16]))
    second = prompt(1, (*TEXT[:16], 1, 2))
    assert found(caching, second, 2) == 16
    assert len(caching.table(second)) == 4


def test_a_chunk_is_findable_when_it_is_computed():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:16]), 6)
    assert found(caching, prompt(1, TEXT[:16]), 1) == 4
    extend(caching, [first], 6)
    assert found(caching, prompt(2, TEXT[:16]), 1) == 12


def test_generated_tokens_are_not_published():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:4]))
    extend(caching, [first], 8)
    release(caching, first)
    assert caching.usage().cached == 4


@pytest.mark.parametrize("size", [4, 8, 16])
def test_ids_of_sixteen_tokens(size):
    caching = policy(block_size=size)
    found(caching, prompt(0, (5, 6), 32, 16))
    assert found(caching, prompt(1, (5, 7), 32, 16)) == 16
    assert found(caching, prompt(2, (6, 5), 16, 16)) == 0


def test_a_partial_last_id_is_shared_in_full_blocks_only():
    caching = policy()
    found(caching, prompt(0, (5, 6), 27, 16))
    assert found(caching, prompt(1, (5, 6), 27, 16)) == 24


def test_block_size_and_ids_must_go_together():
    with pytest.raises(InputError, match="block_size 4 does not go with a trace whose ids name 6 tokens"):
        policy().admit([prompt(0, (1, 2), 12, 6)], 12)
    assert block_contents((1, 2, 3, 4), 2, 8, 4) == [(1, 2), (3, 4)]


def test_room_for_a_hit_beyond_the_chunk_is_no_reason_to_refuse():
    caching = policy(watermark=0.25)
    found(caching, first := prompt(0, TEXT))
    release(caching, first)
    found(caching, prompt(1, tuple(range(32))))  # 8 blocks of 16; 5 cached, 3 free, 4 to be kept
    assert found(caching, prompt(2, (*TEXT, 1)), 1) == 16


def test_a_registered_prefix_still_works():
    caching = policy()
    caching.register_prefix(8)
    seq = prompt(0, TEXT[:12], prefix=8)
    assert found(caching, seq) == 8
    release(caching, seq)
    assert (caching.usage().held, caching.usage().cached) == (8, 0)


def test_a_prompt_without_content_is_private():
    caching = policy()
    for seq_id in range(2):
        assert found(caching, sequence(seq_id, 8)) == 0
    assert caching.usage().saved == 0


def test_the_host_does_not_keep_a_block_from_being_found():
    caching = policy()
    found(caching, first := prompt(0, TEXT[:8]))
    assert isinstance(caching.move([first], HOST), Grant)
    assert caching.usage().cached == 8
    found(caching, large := prompt(1, tuple(range(60))))  # evicts what is cached
    release(caching, large)
    assert isinstance(caching.move([first], DEVICE), Grant)
    caching.computed(first, 8)
    assert found(caching, prompt(2, TEXT[:9])) == 8


def test_equal_blocks_become_one_when_nobody_holds_the_older():
    caching = policy()
    first, second = prompt(0, TEXT[:9]), prompt(1, TEXT[:9])
    found(caching, first, 2)
    found(caching, second, 2)
    extend(caching, [first, second], 7)
    release(caching, first)
    release(caching, second)
    assert caching.usage().cached == 8


def test_what_was_never_computed_is_not_found():
    caching = policy()
    found(caching, prompt(0, TEXT[:8]))
    second = prompt(1, TEXT[:16])
    admit(caching, [second], 16)
    assert found(caching, prompt(2, TEXT)) == 8


def test_never_and_later():
    caching = policy()
    assert caching.admit([prompt(0, tuple(range(65)))], 65) is Refusal.NEVER
    found(caching, prompt(1, tuple(range(40))))
    assert caching.admit([prompt(2, TEXT + TEXT)], 40) is Refusal.LATER


def test_counts():
    caching = policy()
    found(caching, prompt(0, TEXT[:10]))
    found(caching, prompt(1, TEXT[:10]))
    counts = {"prompts": 2, "blocks": 6, "hit_blocks": 2, "tokens": 20, "hit_tokens": 8, "evictions": 0}
    assert caching.counters() == counts


def test_belady_must_be_fed_and_nobody_else_may_be():
    with pytest.raises(UnsupportedError, match="Fifo does not read the future"):
        policy(eviction=Fifo()).foresee_prompts([])
    caching = policy(eviction=Belady())
    with pytest.raises(OracleError, match="foresee"):
        caching.admit([prompt(0, TEXT)], 20)


def test_belady_in_a_policy_keeps_what_is_asked_for_next():
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


def test_a_collision_is_never_shared():
    index = PrefixIndex(4, lambda pair: 0)
    index.insert(index.root, [1, 2], [0, 1], None)
    index.insert(index.root, [2, 1], [2, 3], None)
    assert [node.block for node in index.match([2, 1, 1])] == [2, 3]
    assert [node.block for node in index.match([1, 1])] == [0]
    index.check()
