"""`testbed.check` of schedulers and cost models: ours and the plug-ins keep the contract, broken
ones are named.

And no scheduler, policy or rule that does not declare it decides by outputs that are not over.
"""

from itertools import count

import cheapest_victim
import pytest
import shortest_remaining
from refusals import refuses
from test_plug_in_policies import POLICIES
from tiny import MS, FastMillisecond, analytic

import testbed
from testbed.checks.contract.costs import check_cost
from testbed.checks.fast_and_slow import (
    LIMITS,
    Case,
    differs,
    disagreement,
    other_future,
    registered,
    workload,
)
from testbed.core.errors import InputError
from testbed.core.slots import Refusal
from testbed.cost.model import Affine, CostModel
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


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_keeps_the_contract_and_foresees_nothing(kind):
    broken = testbed.check(kind, **SIZES, **SCHEDULERS[kind])
    assert broken is None, f"{broken} {broken.calls}"


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("name", MAKERS)
def test_no_policy_reads_the_future(name):
    broken = differs(MAKERS[name], POOL, [MixedPrefill])
    assert broken is None, f"{broken} {broken.calls}"


@pytest.mark.parametrize(
    "rule", [Recompute, Swap, RecomputeSingleSwapGroup, cheapest_victim.CheapestVictim]
)
def test_every_preemption_rule_foresees_nothing(rule, golden):
    make = MAKERS["prefix_caching"]
    case, prefix = (
        Case(make=make, pool=POOL, scheduler=ChunkedPrefill, rule=rule, parameters=LIMITS),
        registered(capabilities_of(make(POOL)), 20),
    )
    requests = list(workload(capabilities_of(make(POOL)), True, POOL.max_len, prefix, 10**9))
    served = case.serve(requests, prefix)
    assert disagreement(case, requests, prefix) is None
    assert sorted(served.ends()) == [request.request_id for request in requests]
    totals = served.recorder.totals
    row = {
        "decisions": len(served.decisions),
        "swaps": totals.swaps,
        "recomputes": totals.recomputes,
        "finished": totals.finished,
        "rejected": totals.rejected,
        "iterations": totals.iterations,
        "generated": totals.generated,
        "recomputed": totals.recomputed,
        "copies": totals.copies,
        "last_end_ps": max(served.ends().values()),
    }
    golden("served.csv", rule.__name__, row | served.counters)


def test_another_future_ends_some_served_outputs_earlier():
    """Of every second request that is served, so that its outputs are not over yet elsewhere."""
    make = MAKERS["prefix_caching"]
    requests = list(workload(capabilities_of(make(POOL)), True, POOL.max_len, 0, 10**9))
    rejected = {3, 5}
    earlier = set()
    for request, other in zip(requests, other_future(requests, rejected), strict=True):
        assert other == request._replace(output_len=other.output_len)
        assert request.output_len // 2 < other.output_len <= request.output_len
        if other.output_len < request.output_len:
            earlier.add(request.request_id)
    assert len(earlier) >= 3
    assert all(request_id % 2 for request_id in earlier)
    assert not earlier & rejected


def test_a_prefix_is_registered_where_a_pool_can_hold_it():
    pools = [capabilities_of(MAKERS["paged"](PoolSpec(size, 80))) for size in (16, 24)]
    assert [registered(memory, 17) for memory in pools] == [0, 17]


def set_decodes(plan, **counts):
    """Change what the plan says of its decodes."""
    for name, value in counts.items():
        setattr(plan, name, value)


def change_chunks(plan, **added):
    """Add to a count of every chunk of a prompt."""
    plan.chunks = [
        chunk._replace(**{name: getattr(chunk, name) + more for name, more in added.items()})
        for chunk in plan.chunks
    ]


def fewer_sequences(plan, scheduler):
    set_decodes(plan, decode_seqs=plan.decode_seqs - (plan.decode_seqs > 1))


def less_context(plan, scheduler):
    set_decodes(plan, decode_context=plan.decode_context - (plan.decode_context > 5))


def shorter_longest(plan, scheduler):
    shorter = plan.decode_max_context - (plan.decode_max_context > 5)
    set_decodes(plan, decode_max_context=shorter)


def more_context_than_fits(plan, scheduler):
    set_decodes(plan, decode_context=plan.decode_context + 10_000 * plan.decode_seqs)


def more_steps_than_promised(plan, scheduler):
    plan.guaranteed_steps += plan.guaranteed_steps > 0


def text_instead_of_a_plan(plan, scheduler):
    return "nothing"


def tuples_instead_of_chunks(plan, scheduler):
    plan.chunks = [tuple(chunk[2:]) for chunk in plan.chunks]


def chunk_beyond_what_is_stored(plan, scheduler):
    change_chunks(plan, num_stored=1)


def chunk_beyond_its_slots(plan, scheduler):
    change_chunks(plan, new=1)


def chunk_without_tokens(plan, scheduler):
    change_chunks(plan, new=-500)


def negative_padding(plan, scheduler):
    change_chunks(plan, padding=-1)


def chunk_of_no_group(plan, scheduler):
    if plan.chunks:
        scheduler.state.running.clear()


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (fewer_sequences, "counts decodes (sequences, context, longest) as"),
        (less_context, "counts decodes (sequences, context, longest) as"),
        (shorter_longest, "counts decodes (sequences, context, longest) as"),
        (more_context_than_fits, ": more context than they can have"),
        (more_steps_than_promised, "more steps, of which the policy has promised"),
        (text_instead_of_a_plan, "answered 'nothing', which is no Plan"),
        (tuples_instead_of_chunks, "has ("),
        (chunk_beyond_what_is_stored, ", of which 0 are stored"),
        (chunk_beyond_its_slots, " slots"),
        (chunk_without_tokens, "new=-"),
        (negative_padding, "padding=-1"),
        (chunk_of_no_group, ", which is not running"),
    ],
)
def test_plan_that_differs_from_the_execution_is_reported(change, message):
    class Odd(MixedPrefill):
        def plan(self):
            plan = super().plan()
            return change(plan, self) or plan

    broken = testbed.check(Odd, **SIZES)
    assert broken.clause == 10
    assert str(broken).startswith("clause 10: plan() ")
    assert message in str(broken)
    assert broken.calls[0].startswith("Odd with Recompute, 16 requests")


class Losing(MixedPrefill):
    def add(self, request):
        group = super().add(request)
        if request.request_id == 5:
            self.state.waiting.remove(group)
        return group


TRUE_LENGTHS = {}


class Peeking(MixedPrefill):
    """Knows from elsewhere how long outputs will be, and serves the shortest first."""

    def choose_order(self, waiting):
        ordered = sorted(
            waiting,
            key=lambda group: (TRUE_LENGTHS[group.request_id], group.request_id),
        )
        waiting.clear()
        waiting.extend(ordered)


class PeekingPolicy(Paged):
    """Knows it too, and keeps as many slots free."""

    def admit(self, seqs, num_tokens):
        longer = TRUE_LENGTHS[seqs[0].request_id] > 20
        return Refusal.LATER if longer and self._tables.held else super().admit(seqs, num_tokens)


class Moody(MixedPrefill):
    calls = count()

    def plan(self):
        if next(self.calls) % 7 == 0:
            self.state.waiting.rotate(1)
        return super().plan()


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(("kind", "clause"), [(Losing, 18), (Moody, (7, 9))])
def test_clause_that_a_scheduler_breaks_is_named(kind, clause):
    broken = testbed.check(kind, **SIZES)
    assert broken.clause in (clause if isinstance(clause, tuple) else (clause,)), str(broken)
    assert broken.calls


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize(("scheduler", "make"), [(Peeking, Paged), (MixedPrefill, PeekingPolicy)])
def test_scheduler_that_reads_future_outputs_is_caught(scheduler, make, monkeypatch):
    serve = Case.serve

    def telling(case, requests, *arguments, **options):
        TRUE_LENGTHS.update({request.request_id: request.output_len for request in requests})
        return serve(case, requests, *arguments, **options)

    monkeypatch.setattr(Case, "serve", telling)
    broken = differs(lambda pool: make(pool, 8), POOL, [scheduler])
    assert broken.clause == 10
    assert "decides by outputs that are not over" in str(broken)


def test_a_scheduler_that_goes_with_no_policy_is_refused():
    class Choosy(MixedPrefill):
        def plan(self):
            raise InputError(key="policy", problem="choose another")

    refuses("policy: ", testbed.check, Choosy, **SIZES)


def test_built_in_cost_models_keep_the_contract():
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
        pytest.param(
            pricing(iteration=lambda self, work: work.nothing),
            10,
            "raised AttributeError",
            id="an exception",
        ),
        pytest.param(
            pricing(decode=lambda self, work: Affine(MS, growth_ps=-1, steps=5)),
            10,
            "each later one -1 more",
            id="iterations that become shorter",
        ),
        pytest.param(
            pricing(decode=lambda self, work: Affine(MS, growth_ps=1, steps=5)),
            7,
            "for step 1",
            id="iterations that grow at once, and not one by one",
        ),
        pytest.param(
            pricing(least=lambda self, num_tokens: MS + 1),
            10,
            "least() says",
            id="a bound above the cost",
        ),
        pytest.param(
            pricing(iteration=lambda self, work: MS + (work.decode_max_context > 1500)),
            7,
            "ps for step",
            id="a step that the span does not have",
        ),
        pytest.param(
            pricing(iteration=lambda self, work: MS + next(self.requested)),
            9,
            "another cost when computed again",
            id="a cost that changes",
        ),
    ],
)
def test_clause_that_a_cost_model_breaks_is_named(kind, clause, reported):
    check_broken(testbed.check(kind), clause, reported)


@pytest.mark.parametrize("cost", [1e9, float("nan"), 0, True])
def test_a_cost_that_is_no_int_above_0_breaks_clause_10(cost):
    broken = testbed.check(pricing(iteration=lambda self, work: cost))
    check_broken(broken, 10, "a cost is an int above 0")


def test_a_cost_that_falls_below_0_at_some_lengths_breaks_clause_10():
    broken = testbed.check(pricing(iteration=lambda self, work: MS - work.decode_context * MS))
    check_broken(broken, 10, "a cost is an int above 0")


def check_broken(broken, clause, reported):
    assert broken.clause == clause
    assert reported in str(broken)
    assert broken.calls


def test_a_cost_that_depends_on_earlier_calls_is_named():
    class Remembering(Priced):
        known = None
        decode = CostModel.decode

        def iteration(self, work):
            self.known = self.known or work.num_tokens
            return MS + self.known

    assert testbed.check(Remembering).clause == 9
