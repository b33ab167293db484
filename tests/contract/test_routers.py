"""Every router and hand-over rule that ships keeps the contract; a broken one is caught, its clause
named and its shortest calls shown.
"""

from random import Random
from typing import ClassVar

import pytest
from broken_parts import BrokenParts

from testbed import check
from testbed.checks.handover_checks import check_handover
from testbed.checks.router_checks import check_router
from testbed.core.errors import InputError
from testbed.fleet.handovers.by_layer import ByLayer
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.handovers.whole import Whole
from testbed.fleet.routers.balanced_prefix import BalancedPrefix
from testbed.fleet.routers.fewest_requests import FewestRequests
from testbed.fleet.routers.fewest_tokens import FewestTokens
from testbed.fleet.routers.power_of_two import PowerOfTwo
from testbed.fleet.routers.prefix_aware import PrefixAware
from testbed.fleet.routers.random_choice import RandomChoice
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.fleet.routers.router import Router
from testbed.fleet.routers.session_affinity import SessionAffinity
from testbed.fleet.routers.vllm_balancer import VllmBalancer

ROUTERS = [BalancedPrefix, FewestRequests, FewestTokens, PowerOfTwo, PrefixAware]
ROUTERS += [RandomChoice, RoundRobin, SessionAffinity, VllmBalancer]
MANY = [4, pytest.param(400, marks=pytest.mark.slow)]
BROKEN, BROKEN_RULES = BrokenParts(), BrokenParts()
RANDOM = Random(0)


@pytest.mark.parametrize("num_examples", MANY)
@pytest.mark.parametrize("kind", ROUTERS)
def test_router_keeps_the_contract(kind, num_examples):
    broken = check_router(kind, num_examples)
    assert broken is None, f"{broken} {broken.calls}"


@pytest.mark.parametrize("kind", [Whole, ByLayer])
def test_handover_keeps_the_contract(kind):
    broken = check_handover(kind, 2000)
    assert broken is None, f"{broken} {broken.calls}"


@BROKEN.breaks(10)
class RemembersAView(Router):
    """Of an engine that has failed."""

    first = None

    def route(self, request, engines):
        self.first = self.first or engines[0]
        return self.first


@BROKEN.breaks(10)
class AnswersANumber(Router):
    def route(self, request, engines):
        return request.request_id % len(engines)


@BROKEN.breaks(10)
class ExpectsTwo(Router):
    def route(self, request, engines):
        return engines[1]


@BROKEN.breaks(9)
class DrawsFromAll(Router):
    def route(self, request, engines):
        return RANDOM.choice(engines)


@BROKEN.breaks(9)
class CountsForTheClass(Router):
    number: ClassVar[int] = 0

    def route(self, request, engines):
        CountsForTheClass.number += 1
        return engines[self.number % len(engines)]


@BROKEN.breaks(17)
class SortsItsEngines(Router):
    def route(self, request, engines):
        engines.sort(key=lambda view: -view.num_requests)
        return engines[-1]


@BROKEN.breaks(17)
class LearnsMore(Router):
    def route(self, request, engines):
        self.cache_age_s = 1.0
        return engines[0]


@BROKEN.breaks(18)
class KnowsAnswers(Router):
    """Reads the true lengths of what runs."""

    def route(self, request, engines):
        return min(engines, key=self.left)

    def left(self, view):
        return sum(one.output_len for one in view.engine.outputs.requests.values())


@pytest.mark.parametrize("name", BROKEN)
def test_the_clause_of_a_router_is_named_with_the_calls(name):
    kind, clause = BROKEN[name]
    broken = check_router(kind, 30)
    assert broken is not None, "no clause was broken"
    assert broken.clause == clause, str(broken)


def test_the_shortest_calls_of_a_router_are_shown():
    broken = check_router(RemembersAView, 30)
    before, after = broken.calls  # the engine of the only request fails
    assert before.endswith("engines 0, 1) -> 0")
    assert after.endswith("engines 1)")


class Late(Whole):
    def left_ps(self, sending):
        return super().left_ps(sending) / 1


class MoreIsLonger(Whole):
    def left_ps(self, sending):
        return self.sending_ps(sending.num_tokens + sending.num_skipped, 0, sending.slot_bytes)


class Slower(Whole):
    asked = 0

    def left_ps(self, sending):
        self.asked += 1
        return self.asked


class Raises(HandoverRule):
    def left_ps(self, sending):
        raise KeyError(sending.num_tokens)


@pytest.mark.parametrize(
    ("kind", "clause"), [(Late, 10), (MoreIsLonger, 19), (Slower, 9), (Raises, 10)]
)
def test_the_clause_of_a_handover_is_named(kind, clause):
    broken = check_handover(kind, 30)
    assert broken.clause == clause, str(broken)
    assert broken.calls[0].startswith("left_ps(Sending(")


def test_what_cannot_be_made_is_refused():
    with pytest.raises(InputError, match="hit_weight"):
        check("testbed.fleet.routers.prefix_aware:PrefixAware", hit_weight=-1)
