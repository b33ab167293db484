"""The contract catches a policy that breaks a clause, names the clause and shows the calls: a check that can fail."""

import broken_caches
import broken_swaps
import planted
import pytest

from testbed.contract import check_policy
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching

POOLS = [PoolSpec(num_slots=90, max_len=120, tiers=host(32)), PoolSpec(num_slots=131, max_len=80, tiers=host(60))]

BROKEN = {
    planted.LeaksOnRefusal: {1},
    planted.KeepsTheFirst: {1},
    planted.SharesWhatIsWritten: {4, 5, 8},
    planted.ChangesItsMind: {2, 9},
    planted.SaysNeverWhenBusy: {3},
    planted.SaysLaterForever: {3},
    planted.IsTooModest: {3},
    planted.IsTooProud: {3},
    planted.ForgetsBlocks: {4},
    planted.HandsOutTwice: {4, 5, 6, 7},
    planted.PromisesTheMoon: {6},
    planted.KeepsGrowthToItself: {7},
    planted.CountsDouble: {4, 7},
    planted.Gambles: {9},
    planted.Peeks: {10},
    planted.PeeksAhead: {10},
    planted.NeverCopies: {3, 4, 5},
    planted.ForgetsTheCopy: {5, 7},
    planted.GrantsNothing: {4, 7, 10},
    planted.SaysNothing: {10},
    planted.GrantsOneForAll: {10},
    planted.Raises: {10},
    planted.DeclaresMoves: {10},
    planted.MovesNothing: {10},
    broken_swaps.DropsWriteBacks: {5},
    broken_swaps.DropsTheWayBack: {5},
    broken_swaps.LosesBlocksAfterSwapIn: {4},
    broken_swaps.KeepsTheHostFull: {3},
    broken_swaps.OverfillsTheHost: {4, 5},
    broken_swaps.SwapsOneByOne: {5},
    planted.ForgetsTheRemainder: {8},
    planted.ForgetsShortChunks: {8},
    planted.TrustsReturners: {8},
    planted.MisstatesItsFootprint: {11},
    broken_caches.TrustsTheHash: {5, 8},
    broken_caches.PublishesTooEarly: {4, 8},
    broken_caches.PublishesTooLate: {8},
    broken_caches.NeverPublishes: {8},
    broken_caches.ForgetsSwapIns: {8},
    broken_caches.LosesBlocksOfSwapIns: {4},
    broken_caches.RemembersTheEvicted: {4, 5, 8},
    broken_caches.EvictsWhatIsHeld: {4, 5, 8},
    broken_caches.EvictsForNothing: {1},
    broken_caches.EvictsTooSoon: {6, 7},
    broken_caches.FindsTheLastToken: {5},
    broken_caches.PromisesToNewcomersOnly: {5, 8},
}


@pytest.mark.parametrize("policy", BROKEN)
def test_the_broken_clause_is_named_with_the_calls(policy):
    pools = POOLS[::-1] if issubclass(policy, PrefixCaching) else POOLS  # in which it shows soonest
    found = check_policy(lambda pool: policy(pool, block_size=8), pools, max_examples=300, shrink=False)
    assert found is not None
    assert found.clause in BROKEN[policy], str(found)
    assert found.calls


def test_a_window_that_turns_too_far_is_named():
    found = check_policy(planted.TurnsTooFar, POOLS, shrink=False)
    assert found is not None
    assert found.clause == 5


def test_the_shortest_calls_are_shown():
    found = check_policy(lambda pool: planted.Peeks(pool, block_size=8), POOLS)
    assert len(found.calls) == 2
    assert found.calls[1].startswith("admit(")


def test_nothing_is_left_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_policy(planted.Gambles, POOLS, max_examples=20)
    assert not list(tmp_path.iterdir())
