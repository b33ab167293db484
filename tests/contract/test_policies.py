"""Every built-in memory policy keeps every clause of the contract."""

import pytest

from testbed.contract import check_policy
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.fifo import Fifo
from testbed.memory.prefix_cache.eviction.lfu import Lfu
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching

POOL = PoolSpec(num_slots=600, max_len=256, num_host_slots=300)
TIGHT = PoolSpec(num_slots=130, max_len=80, num_host_slots=60)

POLICIES = {
    "contiguous_max": lambda: ContiguousMax(POOL),
    "contiguous_pow2": lambda: ContiguousPow2(POOL),
    "contiguous_oracle": lambda: ContiguousOracle(POOL, block_size=8),
    "paged_1": lambda: Paged(POOL, block_size=1),
    "paged_16": lambda: Paged(POOL, block_size=16),
    "paged_no_watermark": lambda: Paged(POOL, block_size=7, watermark=0),
    "paged_large_watermark": lambda: Paged(POOL, block_size=4, watermark=0.3),
    "paged_256": lambda: Paged(POOL, block_size=256),
    "caching_lru": lambda: PrefixCaching(TIGHT, block_size=8),
    "caching_fifo": lambda: PrefixCaching(TIGHT, block_size=8, eviction=Fifo()),
    "caching_lfu": lambda: PrefixCaching(TIGHT, block_size=16, eviction=Lfu()),
    "caching_arc": lambda: PrefixCaching(TIGHT, block_size=8, eviction=Arc()),
    "caching_s3_fifo": lambda: PrefixCaching(TIGHT, block_size=8, eviction=S3Fifo()),
    "caching_cost_aware": lambda: PrefixCaching(TIGHT, block_size=4, eviction=CostAware()),
    "caching_large_watermark": lambda: PrefixCaching(TIGHT, block_size=8, watermark=0.3),
    "caching_weak_hash": lambda: PrefixCaching(TIGHT, block_size=8, hash_of=lambda pair: pair[0] & 1),
    "caching_no_hash": lambda: PrefixCaching(TIGHT, block_size=8, eviction=Fifo(), hash_of=lambda pair: 0),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policy_keeps_the_contract(name):
    max_len = TIGHT.max_len if name.startswith("caching") else POOL.max_len
    broken = check_policy(POLICIES[name], max_len, max_examples=60)
    assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
