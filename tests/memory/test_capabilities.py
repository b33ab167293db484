"""A capability is found by its methods exactly if Python says that a policy has its protocol."""

import re

import pytest

from testbed.core.layers import KvGroup
from testbed.experiments.site.capability_table import page
from testbed.memory.capabilities import METHODS, PROTOCOLS, capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec, Tier, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.protocols import Leases, Predicts, Publishes
from testbed.memory.tiers.tiered_caching import TieredCaching

GROUPS = (
    KvGroup("full", num_layers=1, slot_bytes=64),
    KvGroup("window", num_layers=1, slot_bytes=64, window=10),
)
POOL = PoolSpec(160, 120, (*host(64), Tier("dram", 64)), layer_bytes=64, groups=GROUPS)


def test_the_page_has_a_row_for_each_protocol():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(METHODS)
    assert any(row.startswith("| `Predicts` | `guaranteed_steps`, `footprint` | ") for row in rows)
    assert next(row for row in rows if "`PinsHits`" in row).endswith(" Needs `Publishes`. |")


def test_a_capability_has_the_methods_that_not_every_policy_has():
    assert METHODS[Predicts] == ("guaranteed_steps", "footprint")
    assert METHODS[Publishes] == ("lookup", "publish")
    assert METHODS[Leases] == ("end_lease",)
    assert len(METHODS) == 26


@pytest.mark.parametrize(
    "kind", [ContiguousMax, Paged, Paged2023, OutputCaching, TieredCaching, GroupedCaching]
)
def test_what_a_policy_has_is_what_it_is_an_instance_of(kind):
    policy = kind(POOL)
    capabilities = capabilities_of(policy)
    for name, protocol in PROTOCOLS.items():
        assert name == re.sub("(?<=[a-z])(?=[A-Z])", "_", protocol.__name__).lower()
        assert getattr(capabilities, name) is (policy if isinstance(policy, protocol) else None)
