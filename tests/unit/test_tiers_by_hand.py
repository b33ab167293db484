"""What moves to the host and back, and what stays pinned: counted by hand on pools of a few blocks of four slots."""

import pytest
from by_hand import admit, extend, release, samples, seat, sequence

from testbed.core.slots import DEVICE, HOST, Copy, Extent, Grant, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching


def paged(num_blocks=16, kind=Paged, host_blocks=16):
    return kind(PoolSpec(num_blocks * 4, 64, host(host_blocks * 4)), block_size=4, watermark=0)


def test_a_group_comes_back_only_with_room_for_its_next_step():
    policy, seqs = paged(6), [sequence(i, 8) for i in range(2)]
    for seq in seqs:
        seat(policy, [seq], 8)
    policy.move(seqs[:1], HOST)
    extend(policy, seqs[1:], 5)  # four blocks: two are left
    assert policy.move(seqs[:1], DEVICE) is Refusal.LATER
    release(policy, seqs[1])
    assert isinstance(policy.move(seqs[:1], DEVICE), Grant)
    policy.check()


@pytest.mark.parametrize("kind", [Paged, PrefixCaching])
def test_the_host_is_empty_again_and_sharing_survives_the_journey(kind):
    policy, seqs = paged(kind=kind, host_blocks=4), samples(8, count=2)
    seat(policy, seqs, 8)
    before = policy.usage()
    for _ in range(3):
        assert isinstance(policy.move(seqs, HOST), Grant)
        policy.check()
        assert isinstance(policy.move(seqs, DEVICE), Grant)
        policy.check()
        assert policy.usage()[:3] == before[:3]
    extend(policy, seqs, 1)
    release(policy, seqs[0])
    policy.check()


def test_a_prefix_stays_pinned_while_its_users_travel_and_is_counted_once():
    policy = paged()
    policy.register_prefix(8)
    before = policy.usage()
    seqs = [sequence(i, 12, prefix=8) for i in range(2)]
    for seq in seqs:
        seat(policy, [seq], 12)
    assert policy.usage().live == 8 + 2 * 4
    policy.move(seqs[:1], HOST)
    policy.move(seqs[:1], DEVICE)
    policy.check()
    assert policy.usage().live == 8 + 2 * 4
    for seq in seqs:
        release(policy, seq)
    policy.check()
    assert policy.usage() == before


def test_a_prompt_that_is_the_prefix_computes_its_last_token_in_a_block_of_its_own():
    policy, seq = paged(), sequence(0, 8, prefix=8)
    policy.register_prefix(8)
    (grant,) = seat(policy, [seq], 8)
    assert policy.table(seq) == [Extent(0, 4), Extent(8, 4)]
    assert grant.ops.copies == (Copy(4, 8, 4),)


def test_with_a_prefix_a_prompt_fits_that_would_not_without():
    policy = paged(5)
    policy.register_prefix(8)
    assert not isinstance(admit(policy, [sequence(0, 20, prefix=8)], 20), Refusal)
    assert admit(policy, [sequence(1, 20)], 20) is Refusal.NEVER
