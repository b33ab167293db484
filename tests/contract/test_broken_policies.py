"""The contract catches a policy that breaks a clause, names the clause and shows the calls: a check that can fail."""

import re
import sys
import time
from functools import partial
from pathlib import Path

import broken_caches  # noqa: F401
import planted
import pytest
from planted import BROKEN

from testbed.contract import check_policy
from testbed.core.slots import Refusal
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.pools import PinnedPool
from testbed.memory.tiers.tiered_caching import TieredCaching

sys.path.append(str(Path(__file__).parents[1] / "plug_ins"))
import two_tiers

POOLS = [PoolSpec(num_slots=90, max_len=120, tiers=host(32)), PoolSpec(num_slots=131, max_len=80, tiers=host(60))]


SAID = {
    planted.MovesBackwards: r"orders -8 slots from device to host: Copy\(src=\d+, dst=0, length=-8\)",
    planted.MovesToNowhere: "ops name the tier disk; there are device, host",
    planted.CountsInATuple: r"usage\(\) answered \(\d+",
    planted.TakesTwiceThePool: r"usage\(\) counts 176 slots; 90 were given",
    planted.TakesTwiceTheHost: "ops reach slots 32 to 40 of the host; 32 were given",
    planted.WritesWhereOthersRead: r"Sequence\(\d+\) writes to a block that another one shares",
    planted.ForgetsThatCopiesGrow: r"growth \(a shared block was written: the 8 slots of its copy count\) is Growth",
}


@pytest.mark.parametrize("policy", BROKEN)
def test_the_broken_clause_is_named_with_the_calls(policy):
    pools = POOLS[::-1] if issubclass(policy, PrefixCaching) else POOLS  # in which it shows soonest
    found = check_policy(lambda pool: policy(pool, block_size=8), pools, max_examples=300, shrink=False)
    assert found is not None
    assert found.clause in BROKEN[policy], str(found)
    assert re.search(SAID.get(policy, ""), str(found)), str(found)
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

    def pin(self, node):
        """Nothing."""

    def unpin(self, block):
        """Nothing."""


class FoundTooEarly(TieredCaching):
    """What is to be loaded is found before it has landed."""

    def load(self, seq, num_tokens):
        answer = super().load(seq, num_tokens)
        for move_id, one in list(self._hierarchy.in_transit.items()):
            if one.target < 0:
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
