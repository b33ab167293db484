"""`testbed check`: pools by options, one failure at a time, fast against slow, and nothing left behind."""

import pytest

PLUG_IN = """
from testbed.core.slots import Grant
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching


class Silent(Paged):
    def admit(self, seqs, num_tokens):
        super().admit(seqs, num_tokens)


class SaysItMoves(ContiguousMax):
    moves_tiers = True


class ForgetsSwapIns(PrefixCaching):
    def move(self, seqs, tier):
        return Paged.move(self, seqs, tier)


class DropsWriteBacks(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        back = getattr(self, "back", set())
        if tier == "device":
            self.back = back | {seqs[0].seq_id}
        return Grant() if tier == "host" and seqs[0].seq_id in back and isinstance(answer, Grant) else answer


class CountsCalls(Paged):
    calls = 0

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        self.calls += isinstance(answer, Grant)
        return answer

    def counters(self):
        return {"calls": self.calls}


class NeedsABlock(Paged):
    def __init__(self, pool, block_size=16):
        if pool.num_slots < 100:
            raise ValueError("too small")
        super().__init__(pool, block_size)
"""


@pytest.fixture
def check(testbed, tmp_path):
    (tmp_path / "faulty.py").write_text(PLUG_IN)
    return lambda *arguments: testbed("check", *arguments)


def test_a_policy_that_keeps_the_contract_leaves_nothing_behind(check, tmp_path):
    code, output, _ = check("testbed.memory.paged.paged:Paged", "block_size=8", "--examples", "10")
    assert (code, output) == (0, "testbed.memory.paged.paged:Paged keeps the contract\n")
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.py"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Silent", ["clause 10", "admit(", "None"]),
        ("SaysItMoves", ["clause 10", "moves_tiers", "move()"]),
        ("ForgetsSwapIns", ["clause 8", "move([Sequence("]),
        ("DropsWriteBacks", ["clause 5", "'host'"]),
    ],
)
def test_one_failure_is_shown_with_its_clause_and_calls(check, name, parts):
    code, output, error = check(f"faulty:{name}", "block_size=8")
    assert (code, error) == (1, "")
    assert all(part in output for part in parts), output
    assert output.count("breaks the contract") == 1
    assert "Traceback" not in output


def test_simulations_must_agree_whether_fast_or_slow(check):
    code, output, _ = check("faulty:CountsCalls", "--examples", "3")
    assert code == 1
    assert "clause 7" in output
    assert "counters()" in output


def test_the_pool_is_chosen_by_options(check):
    sizes = ("--slots", "130", "--max-len", "60", "--host-slots", "33", "--examples", "3")
    assert check("faulty:NeedsABlock", *sizes)[0] == 0
    code, output, _ = check("faulty:Silent", *sizes)
    assert code == 1
    assert "num_slots=130, max_len=60" in output


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["faulty:NeedsABlock"], "too small"),
        (["faulty:Silent", "no_such=1"], "no_such"),
        (["faulty:Silent", "--slots", "0"], "--slots"),
        (["faulty:Silent", "--max-len", "1"], "--max-len"),
        (["builtins:repr"], "no MemoryPolicy"),
    ],
)
def test_bad_input_is_refused(check, arguments, culprit):
    code, output, error = check(*arguments)
    assert (code, output) == (2, "")
    assert culprit in error
