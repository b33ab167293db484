"""Every policy that caches prefixes evicts by the order that it is given."""

from functools import partial

import pytest
from manual_driver import admit_and_prefill, release, sequence

from testbed.memory.offloading.lmcache import LMCache
from testbed.memory.offloading.vllm import VllmOffloading
from testbed.memory.pools import PoolSpec, Tier
from testbed.memory.prefix_cache.eviction.ranked import Fifo
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.pinned_caching import PinnedCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching

POOL = PoolSpec(64, 128, (Tier("dram", 256),))
POLICIES = {
    "prefix_caching": PrefixCaching,
    "outputs": OutputCaching,
    "pinned": PinnedCaching,
    "tiered": TieredCaching,
    "vllm offloading": VllmOffloading,
    "lmcache": partial(LMCache, chunk_size=8),
}


class Counting(Fifo):
    """Counts the blocks that it evicts."""

    num_victims = 0

    def victim(self):
        self.num_victims += 1
        return super().victim()


@pytest.mark.parametrize("name", POLICIES)
def test_blocks_are_evicted_by_the_order_that_is_given(name):
    order = Counting()
    policy = POLICIES[name](POOL, block_size=8, eviction=order)
    for seq_id in range(3):
        ids = tuple(range(100 * seq_id, 100 * seq_id + 48))
        seq = sequence(seq_id, 48, prompt_ids=ids)
        admit_and_prefill(policy, [seq], 48)
        release(policy, seq)
    assert order.num_victims >= 8
