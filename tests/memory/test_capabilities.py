"""A capability is found by its methods exactly where Python says that a policy has its protocol."""

import re
from pathlib import Path

import pytest

import testbed
from testbed.core.layers import KvGroup
from testbed.memory.capabilities import METHODS, capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import MemoryPolicy, PoolSpec, Tier, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.tiers.tiered_caching import TieredCaching

GROUPS = (
    KvGroup("full", num_layers=1, slot_bytes=64),
    KvGroup("window", num_layers=1, slot_bytes=64, window=10),
)
POOL = PoolSpec(160, 120, (*host(64), Tier("dram", 64)), layer_bytes=64, groups=GROUPS)


def calls_of(protocol):
    return {name for name in vars(protocol) if callable(getattr(protocol, name)) and name[0] != "_"}


@pytest.mark.parametrize("protocol", METHODS)
def test_a_capability_has_the_methods_of_its_protocol(protocol):
    required = calls_of(MemoryPolicy)  # every policy has them
    assert set(METHODS[protocol]) == calls_of(protocol) - required


def test_the_page_for_plug_ins_lists_every_capability_with_its_methods():
    page = Path(testbed.__file__).parent / "memory" / "ADDING_A_POLICY.md"
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: tuple(re.findall(r"`(\w+)`", methods)) for name, methods in rows}
    named = {protocol.__name__: methods for protocol, methods in METHODS.items()}
    assert {name: listed.get(name) for name in named} == named


@pytest.mark.parametrize(
    "kind", [ContiguousMax, Paged, Paged2023, OutputCaching, TieredCaching, GroupedCaching]
)
def test_what_a_policy_has_is_what_it_is_an_instance_of(kind):
    policy = kind(POOL)
    capabilities = capabilities_of(policy)
    for protocol in METHODS:
        name = re.sub("(?<=[a-z])(?=[A-Z])", "_", protocol.__name__).lower()
        assert getattr(capabilities, name) is (policy if isinstance(policy, protocol) else None)
