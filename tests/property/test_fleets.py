"""Random fleets: routers, faults and cancellations. A run in spans is the run step by step, nothing
is lost or answered twice, and each engine does what it would do alone.
"""

from dataclasses import replace
from functools import partial
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from depth import examples
from digests import SLO, digest_of, recorded
from hypothesis import given, settings
from same_runs import assert_same, lengths_of
from shared_beginnings import LONGEST, requests_of
from strategies import (
    MAX_LEN,
    SMALL_TIER,
    bounded_workloads,
    of_one_sequence,
    policies,
    schedulers,
    session_workloads,
    sharing_policies,
    with_ranks,
    with_shared_prompts,
    workloads,
)
from tiny import MS, FastMillisecond, analytic, server

from testbed.core.specs import TierSpec
from testbed.cost.model import UNBOUNDED
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.clients import client_of
from testbed.engine.engine_parts import EngineParts
from testbed.engine.mode import Mode
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulate
from testbed.fleet.faults import Fault, Faults
from testbed.fleet.fleet_records import check_conservation, together
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.fleet_simulation import make_fleet, run_to_end, simulate_fleet
from testbed.fleet.handovers.by_layer import ByLayer
from testbed.fleet.handovers.split import Split
from testbed.fleet.handovers.whole import Whole
from testbed.fleet.routers.balanced_prefix import BalancedPrefix
from testbed.fleet.routers.fewest_requests import FewestRequests
from testbed.fleet.routers.fewest_tokens import FewestTokens
from testbed.fleet.routers.power_of_two import PowerOfTwo
from testbed.fleet.routers.prefix_aware import PrefixAware
from testbed.fleet.routers.random_choice import RandomChoice
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.fleet.routers.session_affinity import SessionAffinity
from testbed.fleet.routers.vllm_balancer import VllmBalancer
from testbed.fleet.summary import summarize_fleet, summary_of
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1

ROUTERS = (
    RoundRobin,
    FewestRequests,
    FewestTokens,
    PowerOfTwo,
    RandomChoice,
    SessionAffinity,
    VllmBalancer,
)
CACHES = (PrefixCaching, OutputCaching)
HANDOVERS = (
    Whole(bandwidth=1e9),
    Whole(bandwidth=5e5),
    Whole(bandwidth=5e5, latency_s=2e-3, reserves=True),
    ByLayer(bandwidth=5e5, extent_s=1e-4),
)
COSTS = [FastMillisecond(), analytic(overhead_s=1e-3)]
SNAPSHOTS_PS = (0, 20 * MS)
TIERED = [
    analytic(
        replace(server(), tiers={"dram": TierSpec(1, bandwidth), "nvme": TierSpec(1, bandwidth)}),
        overhead_s=1e-3,
    )
    for bandwidth in (1e6, 1e7, 1e9)
]


class Watching(RoundRobin):
    """Notes all that a router can see whenever a request arrives."""

    cache_age_s = 0.0

    def __init__(self):
        super().__init__()
        self.seen = []

    def route(self, request, engines):
        for view in engines:
            counts = view.num_requests, view.num_running, view.num_waiting, view.num_tokens
            self.seen.append((request.request_id, view.number, *counts, view.num_cached(request)))
        return super().route(request, engines)


def prefix_aware():
    weights = st.sampled_from([0.0, 0.5, 1.0])
    ages = st.sampled_from([0.0, 0.01, 0.5])
    return st.one_of(
        st.builds(lambda *given: partial(PrefixAware, *given), weights, weights, ages),
        st.builds(lambda *given: partial(BalancedPrefix, *given), st.sampled_from([0, 99]), ages),
    )


@st.composite
def fault_lists(draw, num_engines):
    """At most one fault of each engine, one of which never fails."""
    faults = []
    for engine in range(num_engines - 1):
        if draw(st.booleans()):
            down_ps = draw(st.integers(0, 150 * MS))
            back_ps = draw(st.none() | st.integers(down_ps + 1, down_ps + 60 * MS))
            faults.append(Fault(engine, down_ps, back_ps))
    return tuple(faults)


@st.composite
def engines(draw, num_engines, any_scheduler, kinds):
    """A function that makes the parts of an engine by its number, and the names of the tiers that
    engines share, which about half of the fleets do.
    """
    if draw(st.booleans()):
        make_policies, shared = draw(sharing_policies(num_engines))
        cost = draw(st.sampled_from(TIERED))
    else:
        make_policies, shared = [draw(policies(kinds)) for _ in range(num_engines)], ()
        cost = draw(st.sampled_from(COSTS))
    make_schedulers = [draw(any_scheduler) for _ in range(num_engines)]
    prefetch = {"prefetch": 2} if draw(st.booleans()) else {}

    def make_parts(number):
        policy, make_scheduler = make_policies[number](), make_schedulers[number]
        scheduler = make_scheduler(policy, **(prefetch if shared else {}))
        return EngineParts(scheduler, cost, MAX_LEN, lengths=lengths_of(scheduler))

    return make_parts, shared


@st.composite
def fleets(draw):
    """Requests, a function that makes the parts of an engine, a router, their number, faults, and
    the names of the tiers that the engines share.
    """
    makes_router = draw(st.one_of(st.sampled_from(ROUTERS), prefix_aware(), st.just(Watching)))
    reads_caches = makes_router().cache_age_s is not None
    kinds = CACHES if reads_caches else (Paged, ContiguousMax, *CACHES)
    num_engines = draw(st.integers(1, 4))
    make_parts, shared = draw(engines(num_engines, schedulers(), kinds))
    requests = draw(
        st.one_of(
            workloads(),
            with_shared_prompts(workloads()),
            with_ranks(with_shared_prompts(workloads())),
            session_workloads(),
            bounded_workloads(),
        )
    )
    faults = draw(fault_lists(num_engines))
    return requests, make_parts, makes_router, num_engines, faults, shared


def run_fleet(fleet, cancelled=(), *, split=None, fast_forward, snapshots_ps=()):
    """As simulate_fleet, and requests are cancelled from outside."""
    requests, make_parts, makes_router, num_engines, faults, shared_tiers = fleet
    recorders = [Recorder() for _ in range(num_engines)]
    router, clock = makes_router(), SimClock()
    done = make_fleet(
        clock,
        make_parts,
        recorders,
        FleetRules(router, split and split(makes_router()), faults, shared_tiers),
        Mode(fast_forward, tuple(snapshots_ps)),
    )
    client_of(clock, done, requests).start()
    Faults(clock, done, faults).start()
    for at_ps, request_id in cancelled:
        clock.call_at(at_ps, partial(done.cancel, request_id))
    done.start()
    run_to_end(clock, done, UNBOUNDED)
    check_conservation(len(requests), recorders)
    done.tiers.check()
    return done, recorders, router


@st.composite
def cancellations(draw):
    """(time, request): some at boundaries of iterations, some of requests that have ended."""
    times = st.integers(0, 200).map(lambda ms: ms * MS) | st.integers(0, 200 * MS)
    return draw(st.lists(st.tuples(times, st.integers(0, 39)), max_size=15))


def check_engines_empty(done):
    for replica in done.replicas:
        for engine in replica.engines:
            state = engine.scheduler.state
            assert not [*state.waiting, *state.running, *state.swapped, *state.batch.sequences]
            engine.scheduler.policy.check()


def check_nothing_is_leased(done):
    """No slots are held for a hand-over, but by engines that have failed."""
    for replica in done.replicas:
        if replica.is_up:
            state = replica.engine.scheduler.state
            assert not state.reserved
            assert not state.leased
            assert replica.engine.scheduler.policy.usage().held == 0


def check_fleet(fleet, cancelled, split=None):
    (fast, fast_records, fast_router), (slow, slow_records, slow_router) = (
        run_fleet(fleet, cancelled, split=split, fast_forward=way, snapshots_ps=SNAPSHOTS_PS)
        for way in (True, False)
    )
    for record, other in zip(fast_records, slow_records, strict=True):
        assert_same(record, other)
        assert record.cancellations == other.cancellations
    if isinstance(fast_router, Watching):
        assert fast_router.seen == slow_router.seen
    for done in (fast, slow):
        check_engines_empty(done)
        assert not any(process.is_alive for process in done.processes)
        if split and not cancelled:
            check_nothing_is_leased(done)
    whole = together(fast_records).totals
    assert whole.finished + whole.rejected + whole.cancelled == len(fleet[0])
    return fast_records


@settings(max_examples=examples(60))
@given(fleets(), cancellations())
def test_fleets_are_fast_and_slow_alike(fleet, cancelled):
    check_fleet(fleet, cancelled)


@pytest.mark.slow
@settings(max_examples=300)
@given(fleets(), cancellations())
def test_300_fleets_are_fast_and_slow_alike(fleet, cancelled):
    check_fleet(fleet, cancelled)


def plain_schedulers():
    """Functions that make a scheduler, none of which plans ahead."""
    return schedulers().filter(lambda make: make.args[0] is not AsyncVllmV1)


@st.composite
def split_fleets(draw):
    """The same with prefill engines, of which at least one never fails, nor one that decodes; and
    how these hand over, as a function of a router.
    """
    makes_router = draw(st.one_of(st.sampled_from(ROUTERS), prefix_aware(), st.just(Watching)))
    reads_caches = makes_router().cache_age_s is not None
    kinds = CACHES if reads_caches else (Paged, ContiguousMax, *CACHES)
    num_prefill, num_decode = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    num_engines = num_prefill + num_decode
    make_parts, shared = draw(engines(num_engines, plain_schedulers(), kinds))
    rows = workloads().map(of_one_sequence)
    requests = draw(st.one_of(rows, with_shared_prompts(rows), bounded_workloads((1,))))
    rule = draw(st.sampled_from(HANDOVERS))
    faults = []
    for first, count in ((0, num_prefill), (num_prefill, num_decode)):
        faults += [
            fault._replace(engine=first + fault.engine) for fault in draw(fault_lists(count))
        ]
    fleet = requests, make_parts, makes_router, num_engines, tuple(faults), shared
    return fleet, lambda router: Split(
        num_prefill=num_prefill, rule=rule, decode_router=router, slot_bytes=64, num_layers=2
    )


@settings(max_examples=examples(60))
@given(split_fleets(), cancellations())
def test_split_fleets_are_fast_and_slow_alike(fleet_and_split, cancelled):
    check_fleet(fleet_and_split[0], cancelled, fleet_and_split[1])


@pytest.mark.slow
@settings(max_examples=300)
@given(split_fleets(), cancellations())
def test_300_split_fleets_are_fast_and_slow_alike(fleet_and_split, cancelled):
    check_fleet(fleet_and_split[0], cancelled, fleet_and_split[1])


@settings(max_examples=examples(20))
@given(fleets().filter(lambda fleet: not isinstance(fleet[0], AnswerDrivenWorkload)))
def test_each_engine_of_a_fleet_does_what_it_does_alone(fleet):
    """Without faults and shared tiers the engines meet in the router alone."""
    requests, make_parts, *_ = fleet
    done, recorders, _ = run_fleet((*fleet[:4], (), ()), fast_forward=False, snapshots_ps=[0])
    by_id = {request.request_id: request for request in requests}
    for number, recorder in enumerate(recorders):
        own = np.sort(recorder.requests.columns()["request_id"]).tolist()
        parts = make_parts(number)
        alone = simulate(
            [by_id[request_id] for request_id in own],
            parts.scheduler,
            parts.cost,
            MAX_LEN,
            fast_forward=False,
            lengths=parts.lengths,
            snapshots_ps=[0],
        )
        recorder.end_ps = alone.end_ps  # engines of a fleet end together
        assert_same(alone, recorder)
        counters = done.replicas[number].engine.scheduler.policy.counters()
        assert parts.scheduler.policy.counters() == counters


@settings(max_examples=examples(60))
@given(fleets(), st.sampled_from((RoundRobin, RandomChoice)))
def test_routing_ahead_is_routing_at_each_arrival(fleet, makes_router):
    requests, make_parts, _, num_engines, *_ = fleet
    ahead, at_arrivals = [[Recorder() for _ in range(num_engines)] for _ in range(2)]
    done = simulate_fleet(requests, make_parts, ahead, FleetRules(makes_router()))
    rules = FleetRules(makes_router())
    plain = simulate_fleet(requests, make_parts, at_arrivals, rules, Mode(fast_forward=False))
    for record, other, replica, other_replica in zip(
        ahead, at_arrivals, done.replicas, plain.replicas, strict=True
    ):
        assert_same(record, other)
        policies = [each.engine.scheduler.policy for each in (replica, other_replica)]
        assert policies[0].counters() == policies[1].counters()
    check_engines_empty(done)


@settings(max_examples=examples(60))
@given(fleets())
def test_a_fleet_of_one_engine_is_the_run_without_a_fleet(fleet):
    requests, make_parts, makes_router, *_, shared = fleet
    for fast_forward in (True, False):
        one = (requests, make_parts, makes_router, 1, (), shared)
        _, (recorder,), _ = run_fleet(one, fast_forward=fast_forward, snapshots_ps=SNAPSHOTS_PS)
        parts = make_parts(0)
        alone = simulate(
            requests,
            parts.scheduler,
            parts.cost,
            MAX_LEN,
            fast_forward=fast_forward,
            lengths=parts.lengths,
            snapshots_ps=SNAPSHOTS_PS,
        )
        assert recorder.snapshots == alone.snapshots
        assert recorder.spans.columns().keys() == alone.spans.columns().keys()
        for name, column in alone.spans.columns().items():
            assert column.tolist() == recorder.spans.columns()[name].tolist(), name
        for name, column in alone.requests.columns().items():
            assert column.tolist() == recorder.requests.columns()[name].tolist(), name
        assert alone.totals == recorder.totals
        assert alone.end_ps == recorder.end_ps


SEEN = (*ROUTERS, partial(PrefixAware, 0.5, 0.5, 0.01), partial(BalancedPrefix, 9, 0.01))
GOLDEN = {
    **{f"router {number}": (router, None) for number, router in enumerate(SEEN)},
    **{f"handover {number}": (FewestTokens, rule) for number, rule in enumerate(HANDOVERS)},
}


def drawn_parts(random, shares):
    """A function that makes an engine, of four with pools of their own and caches that differ."""
    sizes = [8 * random.randint(20, 50) for _ in range(4)]
    tiers = (SMALL_TIER,) if shares else ()

    def make_parts(number):
        pool = PoolSpec(sizes[number], LONGEST, (*host(200), *tiers))
        kinds = [TieredCaching] if shares else [PrefixCaching, OutputCaching]
        policy = kinds[number % len(kinds)](pool, 8)
        limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
        scheduler = ChunkedPrefill(policy, Recompute(), **limits, prefetch=2 if shares else 0)
        return EngineParts(scheduler, TIERED[0] if shares else COSTS[1], LONGEST)

    return make_parts


@pytest.mark.parametrize("case", GOLDEN)
def test_a_fleet_equals_the_golden_row(case, golden):
    """Every second fleet shares a tier."""
    (router, rule), random, shares = GOLDEN[case], Random(case), int(case[-1]) % 2 > 0
    requests = [r for r in requests_of(random, 200) if r.final_len < 160]
    faults = () if rule else (Fault(1, 400 * MS, 700 * MS), Fault(2, 1600 * MS, None))
    shared = ("dram",) if shares else ()
    fleet = requests, drawn_parts(random, shares), router, 4, faults, shared
    split = rule and (lambda decode: Split(2, rule, decode, slot_bytes=64, num_layers=2))
    cancelled = [(r.arrival_ps + 5 * MS, r.request_id) for r in requests[::6]]
    done, recorders, _ = run_fleet(fleet, cancelled, split=split, fast_forward=True)
    counters = [dict(each.engine.scheduler.policy.counters()) for each in done.replicas]
    slots = [each.engine.scheduler.policy.usage().total for each in done.replicas]
    whole = summarize_fleet(recorders, together(recorders), slots, None, SLO, None)
    parts = [summary_of(*pair) for pair in zip(done.replicas, recorders, strict=True)]
    row = {
        "finished": [recorder.totals.finished for recorder in recorders],
        "cancelled": [recorder.totals.cancelled for recorder in recorders],
        "iterations": [recorder.totals.iterations for recorder in recorders],
        "recorded": digest_of(*map(recorded, recorders), counters),
        "summary": digest_of(whole, parts),
    }
    golden("fleets.csv", case, row)
