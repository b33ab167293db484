"""Every built-in memory policy keeps the contract; a broken one is caught, its clause named and its
calls shown.
"""

import time
from functools import partial

import pytest
from broken_policies import (
    BROKEN,
    AllocatesHostBlockTwice,
    CachesRejectedDrafts,
    DoesNotPublishAfterSwapIn,
    FoundTooEarly,
    LeaksHostBlocksOnSwapIn,
    PublishesTooEarly,
    ReadsBackFirst,
    SharesPartialBlock,
)
from histories import keeps_the_contract, num_rejections
from releases import UNCACHED_FIRST
from same_runs import FEW_AND_MANY
from two_tiers import TwoTiers

from testbed.checks.contract import search
from testbed.checks.contract.histories import Act, Admit
from testbed.checks.contract.search import broken_by, check_policy, histories_of
from testbed.core.layers import KvGroup
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.dropping.prompt_budget import PromptBudget
from testbed.memory.dropping.quantised_groups import QuantisedGroups
from testbed.memory.groups.grouped import Grouped
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Lfu
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching


def caching(block_size, order=Lru):
    """A prefix cache; an eviction order belongs to one pool, so every policy gets its own."""
    return lambda pool: PrefixCaching(pool, block_size, eviction=order())


def weak_hash(pool):
    policy = PrefixCaching(pool, 8)
    policy._cache.index.hash_of = lambda pair: pair[0] & 1
    return policy


POLICIES = {
    "contiguous_max": ContiguousMax,
    "contiguous_pow2": ContiguousPow2,
    "contiguous_oracle": partial(ContiguousOracle, block_size=8),
    "paged_1": partial(Paged, block_size=1),
    "paged_16": Paged,
    "paged_no_watermark": partial(Paged, block_size=7, watermark=0),
    "paged_2023_no_watermark": partial(Paged2023, block_size=4, watermark=0),
    "caching_lru": caching(8),
    "caching_lfu": caching(16, Lfu),
    "caching_arc": caching(8, Arc),
    "caching_cost_aware": caching(4, CostAware),
    "caching_outputs": lambda pool: OutputCaching(pool, 4, watermark=0),
    "caching_outputs_uncached_first": lambda pool: OutputCaching(
        pool, 4, watermark=0, release=UNCACHED_FIRST
    ),
    "caching_weak_hash": weak_hash,
    "prompt_budget": partial(PromptBudget, budget=12, block_size=4),
    "prompt_budget_interval": partial(PromptBudget, budget=9, interval=8, block_size=4),
    "quantised_groups": partial(QuantisedGroups, group=16, residual=8, ratio=2, block_size=4),
}


@pytest.mark.parametrize("num_examples", FEW_AND_MANY)
@pytest.mark.parametrize("name", POLICIES)
def test_policy_keeps_the_contract(name, num_examples, golden):
    keeps_the_contract(golden, name, POLICIES[name], num_examples=num_examples)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_10002_histories_with_drafts_break_no_clause(name):
    """Every history ends with drafts whose rejected part keeps its slots; before that, policies
    that truncate take such slots back.
    """
    make, rejections = POLICIES[name], 0
    for pool in search.POOLS:
        histories = histories_of(make, pool)
        for number in range(3334):
            calls = histories.speculating()
            broken = broken_by(make, pool, calls)
            assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
            rejections += num_rejections(make, pool, calls) if number < 30 else 0
    assert rejections > 90  # more than one in each history that is counted


def test_preempted_sequence_hits_its_generated_tokens_with_a_shorter_request():
    """The search held a chunk of 1 token against the 4 that were cached, and blamed the cache."""
    calls = [Admit(1, 9), Act("extend", 0, 3), Act("preempt", 0), Act("return", 0, 1)]
    broken = broken_by(lambda pool: OutputCaching(pool, 4), PoolSpec(93, 128), calls)
    assert broken is None, str(broken)


POOLS = [
    PoolSpec(num_slots=90, max_len=120, tiers=host(32)),
    PoolSpec(num_slots=131, max_len=80, tiers=host(60)),
]
GROUPS = (
    KvGroup("full", num_layers=1, slot_bytes=64),
    KvGroup("window", num_layers=1, slot_bytes=64, window=10),
    KvGroup("state", num_layers=3, slot_bytes=0, window=None, state_bytes=250),
)


SOONEST = {
    AllocatesHostBlockTwice: [PoolSpec(300, 40, host(16))],
    DoesNotPublishAfterSwapIn: POOLS,
    FoundTooEarly: [PoolSpec(160, 120, search.tiers_below(80))],
    LeaksHostBlocksOnSwapIn: POOLS[1:],
    PublishesTooEarly: search.POOLS,
    ReadsBackFirst: search.POOLS,
    SharesPartialBlock: search.POOLS,
}


def found_in(policy, **options):
    """The search's finds, in the pools in which it shows soonest."""
    pools = POOLS[::-1] if issubclass(policy, PrefixCaching | ContiguousMax) else POOLS
    if issubclass(policy, TieredCaching | TwoTiers):
        pools = search.POOLS[1:] + search.POOLS[:1]
    pools = SOONEST.get(policy, pools)
    if issubclass(policy, Grouped):
        pools = [PoolSpec(150, 64, layer_bytes=64, num_layers=2, groups=GROUPS)]
    # Histories with drafts come after the others.
    max_examples = 20 if policy is CachesRejectedDrafts else 300
    return check_policy(lambda pool: policy(pool, block_size=8), pools, max_examples, **options)


@pytest.mark.parametrize("name", BROKEN)
def test_the_broken_clause_is_named_with_the_calls(name):
    kind, clause = BROKEN[name]
    broken = found_in(kind, shrink=False)
    assert broken is not None, "no clause was broken"
    assert broken.clause == clause, str(broken)
    assert broken.calls


def test_each_clause_has_a_policy_that_breaks_it():
    assert {clause for _, clause in BROKEN.values()} == set(range(1, 13))


SHORTEST = {
    "ReadsLengthsItDoesNotHave": ["admit([Sequence(0)], 1)"],
    "LeaksOnRefusal": [
        "admit([Sequence(0)], 25)",
        "admit([Sequence(1)], 49) -> Refusal.LATER",
    ],
}


@pytest.mark.parametrize("name", SHORTEST)
def test_the_shortest_calls_are_shown(name):
    broken = found_in(BROKEN[name][0])
    assert [call.split("  #")[0] for call in broken.calls[1:]] == SHORTEST[name]


def test_the_shortest_calls_are_found_soon():
    """Half an admitted group took 28 s: every history that broke nothing was carried out twice, for
    clause 9.
    """
    started = time.process_time()
    assert len(found_in(BROKEN["SeatsHalf"][0]).calls) < 12
    assert time.process_time() - started < 10
