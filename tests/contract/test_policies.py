"""Every built-in memory policy keeps every clause of the contract."""

import pytest

from testbed.contract import check_policy
from testbed.memory.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged import Paged
from testbed.memory.policy import PoolSpec

POOL = PoolSpec(num_slots=600, max_len=256, num_host_slots=300)

POLICIES = {
    "contiguous_max": lambda: ContiguousMax(POOL),
    "contiguous_pow2": lambda: ContiguousPow2(POOL),
    "contiguous_oracle": lambda: ContiguousOracle(POOL, block_size=8),
    "paged_1": lambda: Paged(POOL, block_size=1),
    "paged_16": lambda: Paged(POOL, block_size=16),
    "paged_no_watermark": lambda: Paged(POOL, block_size=7, watermark=0),
    "paged_large_watermark": lambda: Paged(POOL, block_size=4, watermark=0.3),
    "paged_256": lambda: Paged(POOL, block_size=256),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policy_keeps_the_contract(name):
    broken = check_policy(POLICIES[name], max_examples=60)
    assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
