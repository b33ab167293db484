"""vLLM's scheduler in order of priority: the first to be admitted, and the first to lose slots."""

from functools import partial

from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refuses
from same_runs import check_both_ways
from strategies import MAX_LEN, in_order, policies, workloads
from tiny import MS, OneMillisecond, analytic

from testbed.core.request import Request
from testbed.engine.simulation import simulate
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.sched.orders import Aging, ByPriority, SessionOrder
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.vllm.releases import RELEASES, V0_33

LIMITS = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}
COST = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5)


def scheduler_of(num_blocks, release=V0_33, order=None):
    """Blocks of 4 tokens."""
    policy = Paged(PoolSpec(4 * num_blocks, 64), 4, watermark=0.0)
    return VllmV1(policy, Recompute(), **LIMITS, order=order or ByPriority(), release=release)


def ends(scheduler, *shapes):
    """Ends in ms of requests (arrival in ms, priority, prompt, output), and how often each was
    preempted.
    """
    requests = [
        Request(i, at * MS, prompt, output, priority=priority)
        for i, (at, priority, prompt, output) in enumerate(shapes)
    ]
    columns = simulate(requests, scheduler, OneMillisecond(), 64).requests.columns()
    by_id = sorted(range(len(requests)), key=lambda row: columns["request_id"][row])
    finished = [int(columns["finish_ps"][row]) // MS for row in by_id]
    return finished, [int(columns["num_recomputes"][row]) for row in by_id]


def test_the_urgent_request_is_admitted_before_earlier_ones():
    """Three blocks hold one request at a time; the first is served when the others come."""
    shapes = [(0, 5, 8, 4), (1, 5, 8, 4), (2, 0, 8, 4)]
    assert ends(scheduler_of(3), *shapes) == ([4, 12, 8], [0, 0, 0])


def test_the_least_urgent_loses_its_slots_though_it_was_admitted_first():
    """Each of two requests fills a block with its prompt, and three blocks are one too few."""
    shapes = [(0, 1, 4, 4), (0, 0, 4, 4)]
    assert ends(scheduler_of(3), *shapes)[1] == [1, 0]
    assert ends(scheduler_of(3), *[(0, 0, 4, 4), (0, 1, 4, 4)])[1] == [0, 1]


def test_what_was_scheduled_of_a_victim_is_found_when_it_returns():
    """Two blocks of known tokens, the last computed in flight: as vLLM 0.33.0, which computes one
    token then; it took one iteration more to compute five.
    """
    policy = OutputCaching(PoolSpec(16, 64), 4, release=V0_33)
    limits = LIMITS | {"max_num_batched_tokens": 4, "max_num_seqs": 2, "release": V0_33}
    scheduler = AsyncVllmV1(policy, Recompute(), ignore_eos=True, **limits, order=ByPriority())
    assert ends(scheduler, (0, 1, 4, 7), (3, 0, 6, 2)) == ([9, 7], [1, 0])


many = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(
    policies([Paged, Paged, OutputCaching]),
    st.sampled_from([VllmV1, partial(AsyncVllmV1, ignore_eos=False)]),
    st.sampled_from(list(RELEASES.values())),
    st.sampled_from([ByPriority, Aging, SessionOrder]),
    workloads(),
    st.integers(0, 10**6),
)
def test_fast_equals_slow_in_order_of_rank(make_policy, kind, release, order, requests, seed):
    requests = [
        r._replace(num_seqs=1, beam=False, priority=(seed >> r.request_id % 9) % 3)
        for r in requests
    ]
    limits = LIMITS | {"release": release}
    make = partial(in_order, kind, Recompute, limits, order)
    check_both_ways(requests, lambda: make(make_policy()), COST, MAX_LEN)


def test_a_rule_that_swaps_is_refused():
    policy = Paged(PoolSpec(64, 64), 4)
    refuses("preemption=Swap: ", VllmV1, policy, Swap(), **LIMITS, order=ByPriority())
