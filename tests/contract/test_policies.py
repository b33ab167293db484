"""Every built-in memory policy keeps the contract; a broken one is caught, its clause named and its calls shown."""

import re
import time
from functools import partial

import broken_caches  # noqa: F401
import planted
import pytest
import two_tiers
from histories import keeps_the_contract
from planted import BROKEN
from same_runs import FEW_AND_MANY

from testbed.contract import check_policy
from testbed.contract.histories import Act, Admit
from testbed.contract.search import broken_by
from testbed.core.slots import Refusal
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.ranked import Lfu
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.cache_hierarchy import ON_DEVICE
from testbed.memory.tiers.pools import PinnedPool
from testbed.memory.tiers.tiered_caching import TieredCaching


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
def test_policy_keeps_the_contract(name, num_examples, golden):
    keeps_the_contract(golden, name, POLICIES[name], num_examples=num_examples)


def test_a_sequence_finds_again_what_it_generated_though_it_asks_for_less():
    """The search held a chunk of 1 token against the 4 that were cached, and blamed the cache."""
    calls = [Admit(1, 9), Act("extend", 0, 3), Act("preempt", 0), Act("return", 0, 1)]
    broken = broken_by(lambda pool: OutputCaching(pool, 4), PoolSpec(93, 128), calls)
    assert broken is None, str(broken)


POOLS = [PoolSpec(num_slots=90, max_len=120, tiers=host(32)), PoolSpec(num_slots=131, max_len=80, tiers=host(60))]


SAID = {
    "MovesBackwards": r"orders -8 slots from device to host: Copy\(src=\d+, dst=0, length=-8\)",
    "MovesToNowhere": "ops name the tier disk; there are device, host",
    "CountsInATuple": r"usage\(\) answered \(\d+",
    "TakesTwiceThePool": r"usage\(\) counts 176 slots; 90 were given",
    "TakesTwiceTheHost": "ops reach slots 32 to 40 of the host; 32 were given",
    "WritesWhereOthersRead": r"Sequence\(\d+\) writes to a block that another one shares",
    "ForgetsThatCopiesGrow": r"growth \(a shared block was written: the 8 slots of its copy count\) is Growth",
}


@pytest.mark.parametrize("policy", BROKEN)
def test_the_broken_clause_is_named_with_the_calls(policy):
    pools = POOLS[::-1] if issubclass(policy, PrefixCaching) else POOLS  # in which it shows soonest
    found = check_policy(lambda pool: policy(pool, block_size=8), pools, max_examples=300, shrink=False)
    assert found is not None
    assert found.clause in BROKEN[policy], str(found)
    assert re.search(SAID.get(policy.__name__, ""), str(found)), str(found)
    assert found.calls


def test_the_shortest_calls_are_found_soon():
    """Half an admitted group took 28 s: every history that broke nothing was carried out twice, for clause 9."""
    started = time.process_time()
    found = check_policy(lambda pool: planted.SeatsHalf(pool, block_size=8))
    assert found.clause in BROKEN[planted.SeatsHalf]
    assert time.process_time() - started < 10


def test_a_policy_that_reads_back_before_it_writes_out_is_found():
    class ReadsFirst(two_tiers.TwoTiers):
        def admit(self, seqs, num_tokens):
            answers = super().admit(seqs, num_tokens)
            if isinstance(answers, Refusal):
                return answers
            ops = answers[0].ops
            return [answers[0]._replace(ops=ops._replace(moves=ops.moves[::-1])), *answers[1:]]

    found = check_policy(lambda pool: ReadsFirst(pool, block_size=8), max_examples=100, shrink=False)
    assert found is not None
    assert found.clause == 8


class Unpinned(PinnedPool):
    """What transfers read may be taken by others."""

    __slots__ = ()

    def pin(self, nodes):
        return [node.block for node in nodes]

    def unpin(self, blocks):
        """Nothing."""


class FoundTooEarly(TieredCaching):
    """What is to be loaded is found before it has landed."""

    def load(self, seq, num_tokens):
        answer = super().load(seq, num_tokens)
        for move_id, one in list(self._hierarchy.in_transit.items()):
            if one.target == ON_DEVICE:
                super().landed(move_id)
        return answer

    def landed(self, move_id):
        if move_id in self._hierarchy.in_transit:
            super().landed(move_id)


class Overwritten(TieredCaching):
    def _make_cache(self, num_blocks, order, hash_of):
        return Unpinned(num_blocks, order, hash_of, self)


@pytest.mark.parametrize(("kind", "clauses"), [(FoundTooEarly, {8, 12}), (Overwritten, {5, 8, 12})])
def test_blocks_that_are_read_before_landing_or_reused_while_pinned_are_found_out(kind, clauses):
    broken = check_policy(partial(kind, block_size=8), max_examples=60, shrink=False)
    assert broken is not None
    assert broken.clause in clauses


def test_failing_calls_are_shrunk_to_the_shortest():
    found = check_policy(lambda pool: planted.ReadsOutputLenInAdmit(pool, block_size=8), POOLS)
    assert len(found.calls) == 2
    assert found.calls[1].startswith("admit(")
