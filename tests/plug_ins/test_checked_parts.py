"""`testbed.check` of schedulers and cost models: ours and the plug-ins keep the contract, broken
ones are named.

And nobody who does not declare it decides by outputs that are not over, be it a scheduler, a policy
or a rule.
"""

from itertools import count
from zlib import crc32

import cheapest_victim
import pytest
import shortest_remaining
from refusals import refuses
from test_plug_in_policies import POLICIES
from tiny import MS, FastMillisecond, analytic

import testbed
from testbed.checking import check_cost
from testbed.core.errors import InputError
from testbed.core.slots import Refusal
from testbed.cost.model import Affine, CostModel
from testbed.fast_and_slow import (
    LIMITS,
    Case,
    differs,
    disagreement,
    other_future,
    registered,
    workload,
)
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import Mixed2023, MixedPrefill
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1

POOL = PoolSpec(131, 80, host(60))
SIZES = {"num_slots": 131, "max_len": 80, "host_slots": 60}
RELEASE = {**LIMITS, "long_prefill_token_threshold": 16, "scheduler_reserve_full_isl": True}
SCHEDULERS = {
    SeparatePrefill: {},
    MixedPrefill: {},
    ChunkedPrefill: {},
    Mixed2023: {},
    VllmV1: RELEASE,
    AsyncVllmV1: {**RELEASE, "ignore_eos": False},
    StaticBatch: {"max_batch_size": 4, "max_padded_len": 80},
    shortest_remaining.ShortestRemaining: {},
}
MAKERS = {
    **POLICIES,
    "contiguous_max": ContiguousMax,
    "contiguous_pow2": ContiguousPow2,
    "oracle": ContiguousOracle,
    "paged": lambda pool: Paged(pool, 8),
    "paged_2023": lambda pool: Paged2023(pool, 8),
    "prefix_caching": lambda pool: PrefixCaching(pool, 8),
    "output_caching": lambda pool: OutputCaching(pool, 8),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_keeps_the_contract_and_foresees_nothing(kind):
    broken = testbed.check(kind, **SIZES, **SCHEDULERS[kind])
    assert broken is None, f"{broken} {broken.calls}"


@pytest.mark.parametrize("name", MAKERS)
def test_every_policy_foresees_nothing(name):
    broken = differs(MAKERS[name], POOL, [MixedPrefill])
    assert broken is None, f"{broken} {broken.calls}"


@pytest.mark.parametrize(
    "rule", [Recompute, Swap, RecomputeSingleSwapGroup, cheapest_victim.CheapestVictim]
)
def test_every_preemption_rule_foresees_nothing(rule, golden):
    make = MAKERS["prefix_caching"]
    memory = capabilities_of(make(POOL))
    case, prefix = Case(make, POOL, ChunkedPrefill, rule, LIMITS), registered(memory, 20)
    requests = list(workload(memory, True, POOL.max_len, prefix, 10**9))
    served = case.serve(requests, prefix)
    assert disagreement(case, requests, prefix) is None
    found = repr(
        (requests, served.decisions, served.ends(), served.counters, other_future(requests, {3, 5}))
    )
    totals = served.recorder.totals
    row = {
        "decisions": len(served.decisions),
        "swaps": totals.swaps,
        "recomputes": totals.recomputes,
    }
    golden("served.csv", rule.__name__, {**row, "checksum": f"{crc32(found.encode()):08x}"})


def test_a_prefix_is_registered_where_a_pool_can_hold_it():
    pools = [capabilities_of(MAKERS["paged"](PoolSpec(size, 80))) for size in (16, 24)]
    assert [registered(memory, 17) for memory in pools] == [0, 17]


def by(name, change):
    """A count of a plan that becomes another one."""
    return lambda plan, _: setattr(plan, name, change(plan))


def of_chunks(**change):
    """Counts of all chunks that are more, or less, by so much."""

    def changed(chunk):
        return chunk._replace(
            **{name: getattr(chunk, name) + more for name, more in change.items()}
        )

    return by("chunks", lambda plan: [changed(chunk) for chunk in plan.chunks])


CHANGED = {
    "fewer sequences": by("decode_seqs", lambda plan: plan.decode_seqs - (plan.decode_seqs > 1)),
    "less context": by(
        "decode_context", lambda plan: plan.decode_context - (plan.decode_context > 5)
    ),
    "shorter": by(
        "decode_max_context", lambda plan: plan.decode_max_context - (plan.decode_max_context > 5)
    ),
    "more context": by(
        "decode_context", lambda plan: plan.decode_context + 10_000 * plan.decode_seqs
    ),
    "more steps": by(
        "guaranteed_steps", lambda plan: plan.guaranteed_steps + (plan.guaranteed_steps > 0)
    ),
    "no plan": lambda plan, _: "nothing",
    "no chunks": by("chunks", lambda plan: [tuple(chunk[2:]) for chunk in plan.chunks]),
    "beyond": of_chunks(num_stored=1),
    "more tokens": of_chunks(new=1),
    "no tokens": of_chunks(new=-500),
    "padding below none": of_chunks(padding=-1),
    "to nobody": lambda plan, this: plan.chunks and this.state.running.clear(),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_plan_that_does_not_say_what_happens_is_named(name):
    class Odd(MixedPrefill):
        def plan(self):
            plan = super().plan()
            return CHANGED[name](plan, self) or plan

    broken = testbed.check(Odd, **SIZES)
    assert (broken.clause, len(broken.calls) > 1) == (10, True), str(broken)


TOLD = {}


class Peeking(MixedPrefill):
    """Knows from elsewhere how long outputs will be, and serves the shortest first."""

    def choose_order(self, waiting):
        ordered = sorted(
            waiting, key=lambda group: (TOLD[group.request.request_id], group.request.request_id)
        )
        waiting.clear()
        waiting.extend(ordered)


class PeekingPolicy(Paged):
    """Knows it too, and keeps as many slots free."""

    def admit(self, seqs, num_tokens):
        longer = TOLD[seqs[0].request_id] > 20
        return Refusal.LATER if longer and self._tables.held else super().admit(seqs, num_tokens)


@pytest.mark.parametrize(("scheduler", "make"), [(Peeking, Paged), (MixedPrefill, PeekingPolicy)])
def test_who_decides_by_a_later_output_is_caught(scheduler, make, monkeypatch):
    serve = Case.serve

    def telling(case, requests, *arguments, **options):
        TOLD.update({request.request_id: request.output_len for request in requests})
        return serve(case, requests, *arguments, **options)

    monkeypatch.setattr(Case, "serve", telling)
    broken = differs(lambda pool: make(pool, 8), POOL, [scheduler])
    assert broken.clause == 10
    assert "decides by outputs that are not over" in str(broken)


def test_a_scheduler_that_goes_with_no_policy_is_refused():
    class Choosy(MixedPrefill):
        def plan(self):
            raise InputError("choose another policy")

    refuses("choose another policy", testbed.check, Choosy, **SIZES)


def test_costs_of_ours_keep_the_contract():
    assert check_cost(lambda: analytic(overhead_s=1e-3, copy_s=1e-5)) is None
    assert check_cost(FastMillisecond) is None


class Priced(FastMillisecond):
    def __init__(self, model=None, server=None):
        self.requested = count(1)


def pricing(**methods):
    return type("Odd", (Priced,), methods)


@pytest.mark.parametrize(
    ("kind", "clause", "reported"),
    [
        (pricing(iteration=lambda self, work: 1e9), 10, "a cost is an int above 0"),
        (pricing(iteration=lambda self, work: float("nan")), 10, "a cost is an int above 0"),
        (pricing(iteration=lambda self, work: 0), 10, "a cost is an int above 0"),
        (pricing(iteration=lambda self, work: True), 10, "a cost is an int above 0"),
        (
            pricing(iteration=lambda self, work: MS - work.decode_context * MS),
            10,
            "a cost is an int above 0",
        ),
        (pricing(iteration=lambda self, work: work.nothing), 10, "raised AttributeError"),
        (pricing(decode=lambda self, work: Affine(MS, -1, 5)), 10, "each later one -1 more"),
        (pricing(decode=lambda self, work: Affine(MS, 1, 5)), 7, "for step 1"),
        (
            pricing(iteration=lambda self, work: MS + (work.decode_max_context > 1500)),
            7,
            "ps for step",
        ),
        (
            pricing(iteration=lambda self, work: MS + next(self.requested)),
            9,
            "another cost when computed again",
        ),
    ],
)
def test_what_a_cost_model_breaks_is_named(kind, clause, reported):
    broken = testbed.check(kind)
    assert (broken.clause, reported in str(broken)) == (clause, True), str(broken)
    assert broken.calls


def test_a_cost_that_depends_on_earlier_calls_is_named():
    class Remembering(Priced):
        known = None
        decode = CostModel.decode

        def iteration(self, work):
            self.known = self.known or work.num_tokens
            return MS + self.known

    assert testbed.check(Remembering).clause == 9
