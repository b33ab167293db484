"""`testbed check`: what is short and kept, a constructor that fails, fast against slow, several
groups.
"""

import re

import pytest
from refusals import check_words

from testbed.experiments.runs import progress

PLUG_IN = """
from example_policy import Slabs
from testbed.core.slots import Grant, Refusal
from testbed.memory.paged.paged import Paged


class CountsCalls(Paged):
    calls = 0

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        self.calls += isinstance(answer, Grant)
        return answer

    def counters(self):
        return {"calls": self.calls}


class CountsRefusals(Slabs):
    refused = 0

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        self.refused += isinstance(answers, Refusal)
        return answers

    def counters(self):
        return {"refused": self.refused}


class TurnsRoundWhenItRefuses(CountsRefusals):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, Refusal):
            self.free.reverse()
        return answers

    def counters(self):
        return {}


class Trips(Paged):
    def __init__(self, pool):
        super().__init__(pool, [16][1])
"""


SMALL = ("--examples", "1", "--slots", "64", "--max-len", "32")


@pytest.fixture
def check(testbed, tmp_path):
    (tmp_path / "faulty.py").write_text(PLUG_IN)
    return lambda *arguments: testbed("check", *arguments)


@pytest.mark.usefixtures("four_requests")
def test_a_check_counts_the_histories_and_leaves_no_files(check, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_S", 1e-3)
    code, output, said = check("example_policy:Slabs", "slab_size=8", *SMALL)
    assert (code, output) == (0, "example_policy:Slabs keeps the contract\n")
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.py"]
    assert re.search(r": \d+ of 9 histories \([\d.]+/s, about \d+ s left\), \d+ s\n", said)
    assert re.search(r": 9 of 9 histories, then the last checks, \d+ s\n$", said)


def test_a_constructor_that_fails_is_named_in_one_line(check):
    code, output, error = check("faulty:Trips")
    assert (code, output) == (2, "")
    assert error.startswith("testbed check: error: policy: ")
    assert "IndexError: list index out of range (faulty.py:" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CountsRefusals", ("clause 1", "refused", "from 0 to 1")),
        ("TurnsRoundWhenItRefuses", ("clause 9", "repeated", "order of free slots")),
    ],
)
def test_what_a_refusal_changed_is_said(check, name, words):
    code, output, _ = check(f"faulty:{name}", "--examples", "20", "--slots", "200")
    assert code == 1
    check_words(words, output)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("example_policy:Slabs slab_sise=8", ("slab_sise", "slab_size")),
        ("example_policy:Slabs slab_size=eight", ("slab_size='eight'", "whole number")),
        ("example_policy.py", ("MODULE:CLASS",)),
        ("fractions:Fraction", ("Fraction", "PreemptionRule", "a run")),
    ],
)
def test_what_cannot_be_checked_is_refused_with_the_way_out(check, call, words):
    code, output, error = check(*call.split())
    assert (code, output) == (2, "")
    check_words(words, error)


def test_difference_of_fast_and_slow_simulations_is_reported(check):
    code, output, _ = check("faulty:CountsCalls", *SMALL)
    assert code == 1
    assert "clause 7" in output
    assert "counters()" in output


@pytest.mark.usefixtures("four_requests")
def test_policies_of_several_groups_are_checked_by_name(check):
    assert check("testbed.memory.groups.grouped_caching:GroupedCaching", *SMALL)[0] == 0
