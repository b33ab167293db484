"""A broken preemption rule is caught by `testbed check`: its clause is named, its requests are
shown.
"""

from typing import ClassVar

import pytest

import testbed
from testbed.sched.preemption import PreemptionRule, Recompute, RecomputeTail

SIZES = {"num_slots": 131, "max_len": 80, "host_slots": 60}


class NamesARequest(Recompute):
    def victim(self, running, batch):
        return next(iter(running))


class CountsCallsOfAllObjects(Recompute):
    calls: ClassVar[list[int]] = []

    def victim(self, running, batch):
        self.calls.append(1)
        return list(running.values())[len(self.calls) % len(running)]


class SaysNoRecovery(PreemptionRule):
    def recovery(self, group):
        return "swap"


class LongestToCome(RecomputeTail):
    """An oracle, which says so."""

    def __init__(self, cost=None, *, lengths):
        super().__init__(cost, tail_tokens=8)
        self.lengths = lengths

    def victim(self, running, batch):
        return max(running.values(), key=self.left)

    def left(self, group):
        request_id = group.request_id
        return self.lengths[request_id] - group.num_generated, request_id


BROKEN = {NamesARequest: 10, CountsCallsOfAllObjects: 9, SaysNoRecovery: 10}


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("rule", BROKEN)
def test_the_broken_clause_of_a_rule_is_named_with_the_requests(rule):
    broken = testbed.check(rule, **SIZES)
    assert broken is not None, "no clause was broken"
    assert broken.clause == BROKEN[rule], str(broken)
    assert rule.__name__ in f"{broken} {broken.calls}"
    assert len(broken.calls) > 1


@pytest.mark.usefixtures("few_requests")
def test_an_oracle_that_declares_itself_keeps_the_contract():
    broken = testbed.check(LongestToCome, **SIZES)
    assert broken is None, f"{broken} {broken.calls}"
