"""Every built-in memory policy keeps every clause of the contract."""

from functools import partial

import pytest
from same_runs import FEW_AND_MANY

from testbed.contract import check_policy
from testbed.contract.histories import Act, Admit
from testbed.contract.search import broken_by
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Lfu
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching


def caching(block_size, order=Lru, **options):
    """A prefix cache; an eviction order belongs to one pool, so every policy gets its own."""
    return lambda pool: PrefixCaching(pool, block_size, eviction=order(), **options)


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
    "caching_outputs_uncached_first": lambda pool: OutputCaching(pool, 4, watermark=0, uncached_first=True),
    "caching_weak_hash": caching(8, hash_of=lambda pair: pair[0] & 1),
}


@pytest.mark.parametrize("num_examples", FEW_AND_MANY)
@pytest.mark.parametrize("name", POLICIES)
def test_policy_keeps_the_contract(name, num_examples):
    broken = check_policy(POLICIES[name], max_examples=num_examples)
    assert broken is None, f"{broken}\n" + "\n".join(broken.calls)


def test_a_sequence_finds_again_what_it_generated_though_it_asks_for_less():
    """The search held a chunk of 1 token against the 4 that were cached, and blamed the cache."""
    calls = [Admit(1, 9), Act("extend", 0, 3), Act("preempt", 0), Act("return", 0, 1)]
    broken = broken_by(lambda pool: OutputCaching(pool, 4), PoolSpec(93, 128), calls)
    assert broken is None, str(broken)
