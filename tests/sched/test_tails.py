"""Preemption that takes only the end of a victim's tokens."""

from functools import partial

import hypothesis.strategies as st
import pytest
from depth import examples
from hypothesis import HealthCheck, given, settings
from manual_driver import (
    ManualDriver,
    admit_and_prefill,
    extend,
    paged,
    scheduler_of,
    sequence,
)
from refusals import refuses
from same_runs import check_both_ways
from strategies import MAX_LEN, mixed_workloads, policies, workloads
from tiny import MS, FastMillisecond, analytic

from testbed.core.request import Request
from testbed.core.slots import Refusal
from testbed.engine.simulation import simulate
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.orders import Aging
from testbed.sched.preemption import Recompute, RecomputeTail, Recovery
from testbed.sched.separate import SeparatePrefill
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1

COST = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5)
V1 = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": False}
AGING = partial(ChunkedPrefill, order=Aging())
KINDS = [SeparatePrefill, MixedPrefill, ChunkedPrefill, AGING, VllmV1, AsyncVllmV1]
many = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


class SwapsOrShrinks(RecomputeTail):
    """One way for every other request."""

    def recovery(self, group):
        return Recovery.SWAP if group.request_id % 2 else super().recovery(group)


@many
@given(
    policies([Paged, Paged, Paged2023, PrefixCaching, ContiguousMax]),
    st.sampled_from(KINDS),
    st.sampled_from([RecomputeTail, SwapsOrShrinks]),
    st.sampled_from([1, 20]),
    st.one_of(workloads(), mixed_workloads()),
    st.sampled_from([60, 300]),
)
def test_fast_equals_slow_with_tails(make_policy, kind, rule, tail_tokens, requests, budget):
    options = {"max_num_seqs": 40, "max_num_batched_tokens": budget}
    options |= V1 if kind in (VllmV1, AsyncVllmV1) else {}
    options |= {"ignore_eos": bool(tail_tokens % 2)} if kind is AsyncVllmV1 else {}
    requests = [request._replace(priority=request.request_id % 3) for request in requests]
    for one in check_both_ways(
        requests,
        lambda: kind(make_policy(), rule(tail_tokens=tail_tokens), **options),
        COST,
        MAX_LEN,
    ):
        assert one.policy.usage().held == 0
        assert one.state.partially_preempted is None


def run(rule, lengths, num_slots=64):
    policy = Paged(PoolSpec(num_slots, 64, host(64)), block_size=16, watermark=0.0)
    requests = [Request(i, i * MS, prompt, output) for i, (prompt, output) in enumerate(lengths)]
    return simulate(
        requests, scheduler_of(ChunkedPrefill, policy, rule), FastMillisecond(), 64
    ).totals


def test_only_the_blocks_that_others_lack_are_computed_again():
    lengths = [(30, 6), (31, 20)]  # the first needs a third block when the pool of four is full
    whole, tail = run(Recompute(), lengths), run(RecomputeTail(), lengths)
    assert (whole.recomputes, whole.recomputed) == (1, 33)
    assert (tail.recomputes, tail.recomputed) == (1, 17)


@pytest.mark.parametrize(("tail_tokens", "recomputed"), [(1, 17), (16, 17), (17, 33)])
def test_a_tail_ends_where_a_block_begins(tail_tokens, recomputed):
    """Of 32 stored tokens in two blocks, and the next one."""
    totals = run(RecomputeTail(tail_tokens=tail_tokens), [(30, 6), (31, 20)])
    assert (totals.recomputes, totals.recomputed) == (1, recomputed)


def test_a_tail_of_no_tokens_is_refused():
    refuses("tail_tokens=0: ", RecomputeTail, tail_tokens=0)


def test_a_shrunk_sequence_keeps_its_blocks_and_fits_with_them():
    policy = Paged(PoolSpec(64, 64), block_size=16, watermark=0.0)
    one, two = sequence(0, 40), sequence(1, 16)
    admit_and_prefill(policy, [one], 40)
    admit_and_prefill(policy, [two], 16)
    policy.truncate(one, 19)
    one.num_slots = one.num_stored = 21
    policy.check()
    assert (policy.usage().live, policy.usage().free) == (37, 16)
    assert policy.fits(one, 48)
    assert not policy.fits(one, 49)
    assert not isinstance(extend(policy, [one], 27), Refusal)
    policy.check()
    assert isinstance(extend(policy, [one], 1), Refusal)


def test_only_paged_memory_without_a_cache_truncates():
    pool = PoolSpec(64, 64)
    assert capabilities_of(Paged(pool)).truncates is not None
    for kind in (ContiguousMax, PrefixCaching, OutputCaching):
        assert capabilities_of(kind(pool)).truncates is None


def test_one_group_alone_keeps_a_part_of_its_slots_until_it_is_cancelled():
    driver = ManualDriver(scheduler_of(MixedPrefill, paged(16), RecomputeTail(4)))
    first, second, third = (driver.add(Request(number, 0, 16, 9)) for number in range(3))
    driver.step()
    for group, held in ((third, 16 + 16 + 12), (second, 16 + 12)):
        driver.state.leave_batch(group)
        driver.state.preempt_tail(group, 4)
        assert driver.state.partially_preempted is third
        assert driver.policy.usage().held == held
    assert list(driver.state.waiting) == [second, third]
    driver.scheduler.cancel(third)
    assert driver.state.partially_preempted is None
    assert driver.policy.usage().held == first.sequences[0].num_slots == 16
    driver.policy.check()
