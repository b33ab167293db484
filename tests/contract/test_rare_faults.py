"""Faults that show only after many calls, now and then, or in a count."""

import pytest

from testbed.checks.contract.search import check_policy
from testbed.core.slots import Keep, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching, PromptHit

POOL = PoolSpec(num_slots=600, max_len=256, tiers=host(60))


class RefusesFromThe41st(Paged):
    admitted = 0

    def admit(self, seqs, num_tokens):
        answers = Refusal.LATER if self.admitted >= 40 else super().admit(seqs, num_tokens)
        self.admitted += not isinstance(answers, Refusal)
        return answers


class LeaksFromThe51st(Paged):
    released = 0

    def release(self, seq, keep=Keep.CACHED):
        super().release(seq, keep)
        self.released += 1
        if self.released > 50:
            self._pool.free.pop()


class LiesEverySeventhTime(PrefixCaching):
    lookups = 0

    def lookup(self, seq):
        self.lookups += 1
        hit = super().lookup(seq)
        if self.lookups % 7:
            return hit
        return PromptHit(seq, self.block_size, hit.contents, [])


class SaysThatItFindsNothing(PrefixCaching):
    def lookup(self, seq):
        return Silent(seq, self.block_size, self._contents(seq), super().lookup(seq).nodes)


class Silent(PromptHit):
    def num_cached(self, num_tokens):
        return 0


class CountsHitsTwice(PrefixCaching):
    def counters(self):
        counts = super().counters()
        return {**counts, "hit_tokens": 2 * counts["hit_tokens"]}


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (RefusesFromThe41st, 3),
        (LeaksFromThe51st, 4),
        (LiesEverySeventhTime, 8),
        (SaysThatItFindsNothing, 8),
        (CountsHitsTwice, 8),
    ],
)
def test_a_rare_fault_is_found(kind, clause):
    broken = check_policy(lambda pool: kind(pool, block_size=8), [POOL], 5, shrink=False)
    assert broken is not None
    assert broken.clause == clause, str(broken)
