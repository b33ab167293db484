"""Faults that show only after many calls, now and then, in a count, or in another process."""

import sys

import pytest
from refusals import refuses

from testbed import check
from testbed.checks.contract.search import check_policy
from testbed.checks.hash_seeds import follows_hashes
from testbed.core.slots import Keep, Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching, PromptHit
from testbed.run.parts import locate

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
    broken = check_policy(lambda pool: kind(pool, block_size=8), [POOL], 30, shrink=False)
    assert broken is not None
    assert broken.clause == clause, str(broken)


SHUFFLED = """
from testbed.memory.paged.paged import Paged


class Shuffled(Paged):
    def __init__(self, pool):
        super().__init__(pool)
        names = {f"block {block}" for block in self._pool.free}
        self._pool.free[:] = [int(name.split()[1]) for name in names]
"""


def test_an_order_by_the_hash_of_strings_is_found_in_two_processes(tmp_path, monkeypatch):
    (tmp_path / "shuffled.py").write_text(SHUFFLED)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    shuffled = locate("shuffled.Shuffled", "plug-in")
    broken = follows_hashes(shuffled, [PoolSpec(num_slots=200, max_len=64)], {})
    assert broken is not None
    assert broken.clause == 9
    assert "PYTHONHASHSEED" in str(broken)
    assert broken.calls


ENDING = """
import os
import pathlib

from testbed.memory.prefix_cache.eviction.lru import Lru

if os.environ.get("PYTHONHASHSEED") == "2":
    os._exit(pathlib.Path("code").stat().st_size)


class Ending(Lru):
    pass
"""


def test_a_plug_in_that_ends_a_process_is_refused_and_asked_anew(tmp_path, monkeypatch):
    """In the folder of the caller."""
    (tmp_path / "ending.py").write_text(ENDING)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for code in (3, 4):
        (folder := tmp_path / str(code)).mkdir()
        (folder / "code").write_text("x" * code)
        monkeypatch.chdir(folder)
        refuses(f"ending.Ending: .* it ends with {code}", check, "ending:Ending", num_examples=1)
