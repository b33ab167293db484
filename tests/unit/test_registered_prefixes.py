"""A provider's prefix is there as a whole: for a short first chunk, on the host, and when its users have gone."""

import pytest
from by_hand import extend, release, scheduler_of, seat, sequence
from ticks import FastMillisecond

from testbed.core.request import PS, Request
from testbed.core.slots import DEVICE, HOST, Copy, Extent, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.metrics import summarize
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sim.simulation import simulate

KINDS = [Paged, PrefixCaching]
PREFIX = 10


def registered(kind, num_blocks=16, host_blocks=16):
    policy = kind(PoolSpec(num_blocks * 4, 64, host(host_blocks * 4)), block_size=4, watermark=0)
    policy.register_prefix(PREFIX)
    return policy


def user(seq_id, prompt_len=14):
    return sequence(seq_id, prompt_len, prefix=PREFIX)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 5, 10, 14])
def test_a_first_chunk_of_any_size_has_the_whole_prefix(kind, num_tokens):
    policy, seq = registered(kind), user(0)
    (grant,) = seat(policy, [seq], num_tokens)
    assert (grant.num_cached, seq.room) == (PREFIX, max(PREFIX, num_tokens))
    assert grant.ops.copies == (Copy(8, 12, 4),)  # its partial last block
    assert policy.table(seq)[:3] == [Extent(0, 4), Extent(4, 4), Extent(12, 4)]
    policy.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 5, 10])
@pytest.mark.parametrize("back", [True, False])
def test_after_a_short_first_chunk_a_swap_loses_no_block_and_frees_no_pinned_one(kind, num_tokens, back):
    policy, seq = registered(kind), user(0)
    before = policy.usage()
    seat(policy, [seq], num_tokens)
    policy.move([seq], HOST)
    policy.check()
    assert policy.usage()._replace(saved=0) == before  # the host's table goes on holding what is pinned
    if back:
        policy.move([seq], DEVICE)
        policy.check()
        extend(policy, [seq], 8)
        policy.check()
    release(policy, seq)
    policy.check()
    assert policy.usage() == before


def test_what_would_not_fit_beside_the_prefix_can_never_be_admitted():
    policy = registered(Paged, num_blocks=6)  # three blocks are pinned
    assert policy.longest(1, 1) == 12
    assert policy.admit([sequence(0, 13)], 13) is Refusal.NEVER
    assert policy.admit([user(1, 21)], 21) is Refusal.NEVER  # two shared ones, and four of its own
    assert isinstance(policy.admit([user(2, 20)], 20), list)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [Recompute, Swap])
@pytest.mark.parametrize("fast_forward", [True, False])
def test_shares_stay_within_0_and_1_when_chunks_are_shorter_than_the_prefix(kind, rule, fast_forward):
    class Checked(kind):
        def usage(self):
            self.check()
            return super().usage()

    policy = registered(Checked, num_blocks=24, host_blocks=12)
    empty = policy.usage()
    requests = [Request(i, i * PS // 2000, 12 + i % 9, 5 + i % 14, prefix=PREFIX) for i in range(60)]
    scheduler = scheduler_of(ChunkedPrefill, policy, rule(), max_num_batched_tokens=6)
    recorder = simulate(requests, scheduler, FastMillisecond(), 64, fast_forward=fast_forward)
    assert recorder.totals.finished == 60
    assert recorder.totals.swaps + recorder.totals.recomputes > 5
    shares = [part[by] for part in summarize(recorder, 96)["memory"].values() for by in ("per_iteration", "over_time")]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) == pytest.approx(2)
    assert policy.usage() == empty
