"""A prompt is matched against the cache once per attempt to admit it, whatever the scheduler."""

import pytest
from manual_driver import scheduler_of

from testbed.checks.fast_and_slow import EFFICIENCIES, MODEL, SERVER
from testbed.core.layers import KvGroup
from testbed.core.request import Request
from testbed.cost.analytic import AnalyticCost
from testbed.engine.simulation import simulate
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.policy import PoolSpec, Tier, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import Mixed2023, MixedPrefill
from testbed.sched.orders import Aging, SessionOrder, TimeToLive
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1

GROUPS = (
    KvGroup("full", num_layers=1, slot_bytes=1),
    KvGroup("window", num_layers=1, slot_bytes=1, window=10),
)
POOL = PoolSpec(300, 256, (*host(256), Tier("dram", 512)), num_layers=2, groups=GROUPS)
COST = AnalyticCost(MODEL, SERVER, EFFICIENCIES)
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
RELEASE = {"long_prefill_token_threshold": 16, "scheduler_reserve_full_isl": True}
SCHEDULERS = {
    SeparatePrefill: {},
    MixedPrefill: {},
    Mixed2023: {},
    ChunkedPrefill: {},
    VllmV1: RELEASE,
    AsyncVllmV1: {**RELEASE, "ignore_eos": True},
}


def counting(kind):
    """A policy that counts: look-ups, walks through its index, and attempts to admit or to load."""

    class Counting(kind):
        def __init__(self, pool):
            super().__init__(pool, block_size=8)
            self.num_lookups = self.num_walks = self.num_attempts = 0
            index = self.cache.index if isinstance(self, GroupedCaching) else self._cache.index
            self.walk_of(index, "path" if isinstance(self, GroupedCaching) else "match")

        def walk_of(self, index, name):
            walk = getattr(index, name)

            def counted(contents):
                self.num_walks += 1
                return walk(contents)

            setattr(index, name, counted)

        def lookup(self, seq):
            self.num_lookups += 1
            return super().lookup(seq)

        def admit(self, seqs, num_tokens, hit=None):
            assert hit is not None, "the scheduler has looked up nothing"
            self.num_attempts += not isinstance(self, TieredCaching)
            return super().admit(seqs, num_tokens, hit)

    if kind is not TieredCaching:
        return Counting

    class CountingLoads(Counting):
        def load(self, seq, num_tokens, hit):
            self.num_attempts += 1  # ahead of every admit
            return super().load(seq, num_tokens, hit)

    return CountingLoads


def requests():
    """Sessions whose prompts grow, which overload the pool."""
    for i in range(48):
        turn, session = divmod(i, 8)
        ids = tuple(1000 * session + k for k in range(24 * (turn + 1)))
        yield Request(i, i * 10**9, len(ids), 12, prompt_ids=ids, session=session)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("policy", [PrefixCaching, OutputCaching, TieredCaching, GroupedCaching])
def test_a_prompt_is_matched_once_per_admission(policy, kind):
    check_matches(policy, kind, SCHEDULERS[kind])


@pytest.mark.parametrize("order", [Aging, SessionOrder, TimeToLive])
@pytest.mark.parametrize("policy", [PrefixCaching, OutputCaching, TieredCaching, GroupedCaching])
def test_a_prompt_is_matched_once_per_admission_in_each_order(policy, order):
    check_matches(policy, ChunkedPrefill, {"order": order()})


def check_matches(policy, kind, options):
    caching = counting(policy)(POOL)
    scheduler = scheduler_of(kind, caching, Recompute(), **LIMITS, **options)
    totals = simulate(requests(), scheduler, COST, 256).totals
    assert totals.finished + totals.rejected == 48
    assert caching.num_walks == caching.num_lookups == caching.num_attempts > 40


def test_a_group_that_waits_for_budget_is_not_admitted_and_looked_up_again_later():
    """vLLM without chunked prefill needs the hit to know that the budget is too small."""
    caching = counting(PrefixCaching)(POOL)
    options = {**LIMITS, **RELEASE, "enable_chunked_prefill": False}
    scheduler = scheduler_of(VllmV1, caching, Recompute(), **options)
    totals = simulate(requests(), scheduler, COST, 256).totals
    assert totals.finished + totals.rejected == 48
    assert caching.num_walks == caching.num_lookups >= caching.num_attempts
