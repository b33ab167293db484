"""Requests are submitted and cancelled from outside at any time, unannounced: a run in spans is the
run step by step, bit for bit, also if engines share a clock and hand requests on.
"""

from itertools import count

import hypothesis.strategies as st
import pytest
import simpy
from depth import examples
from hypothesis import given, settings
from same_runs import assert_same, lengths_of
from strategies import MAX_LEN, policies, schedulers, with_shared_prompts, workloads
from test_fast_equals_slow import whole_runs
from tiny import MS, FastMillisecond, analytic

from testbed.cost.model import Affine
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.engine_parts import EngineParts
from testbed.engine.listeners import Listener, TokenListener
from testbed.engine.mode import Mode
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulated_engine
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch

ANY_POLICY = policies((Paged, PrefixCaching, OutputCaching, ContiguousMax, ContiguousOracle))
some = settings(max_examples=examples(60))


class Growing(FastMillisecond):
    """A boundary at every multiple of a millisecond; a long batch takes a millisecond more each."""

    def iteration(self, work):
        return MS * (1 + work.decode_max_context // 64)

    def decode(self, work):
        left = 64 - work.decode_max_context % 64
        return Affine(self.iteration(work), 0, left)


COSTS = [FastMillisecond(), Growing(), analytic(overhead_s=1e-3)]


class Ends(TokenListener):
    """All events, in order."""

    def __init__(self):
        self.events = []

    def on_tokens(self, request_id, num_tokens, time_ps):
        self.events.append(("tokens", request_id, num_tokens, time_ps))

    def on_finished(self, request_id, time_ps):
        self.events.append(("finished", request_id, time_ps))

    def on_rejected(self, request_id, reason, time_ps):
        self.events.append(("rejected", request_id, time_ps))

    def on_cancelled(self, request_id, time_ps):
        self.events.append(("cancelled", request_id, time_ps))


@st.composite
def cancellations(draw):
    """(time, request): some at boundaries of iterations, some of requests that have ended."""
    times = st.one_of(st.integers(0, 200).map(lambda ms: ms * MS), st.integers(0, 200 * MS))
    return draw(st.lists(st.tuples(times, st.integers(0, 39)), max_size=25))


def outside(env, calls):
    """A process of SimPy that makes calls at their times."""
    for at_ps, call in sorted(calls, key=lambda pair: pair[0]):
        if at_ps > env.now:
            yield env.timeout(at_ps - env.now)
        call()


def calls_of(engine, requests, cancelled):
    """(time, call) of what is submitted and cancelled."""
    calls = [
        (request.arrival_ps, lambda request=request: engine.submit(request)) for request in requests
    ]
    return calls + [
        (at_ps, lambda request=request: engine.cancel(request)) for at_ps, request in cancelled
    ]


def engine_of(clock, scheduler, cost, recorder, fast_forward):
    parts = EngineParts(scheduler, cost, MAX_LEN, lengths=lengths_of(scheduler))
    return simulated_engine(clock, parts, recorder, Mode(fast_forward))


def run(requests, cancelled, scheduler, cost, *, fast_forward, listener=None, tokens=False):
    clock = SimClock(simpy.Environment(0))
    recorder = Recorder()
    engine = engine_of(clock, scheduler, cost, recorder, fast_forward)
    if listener is not None:
        (engine.listen_to_tokens if tokens else engine.listen)(listener)
    calls = calls_of(engine, requests, cancelled)
    last_ps = max((at_ps for at_ps, _ in calls), default=0)
    clock.env.process(outside(clock.env, [*calls, (last_ps + 1, engine.close)]))
    clock.env.run(until=clock.start(engine.serve()))
    return recorder


def check_empty(scheduler, recorder, requests, held_at_first):
    """All have ended in one of the three ways, and nothing is held but what outlives requests."""
    totals, state = recorder.totals, scheduler.state
    assert totals.arrived == len(requests)
    assert totals.finished + totals.rejected + totals.cancelled == totals.arrived
    assert totals.cancelled == len(recorder.cancellations)
    assert not [*state.waiting, *state.running, *state.swapped, *state.batch.sequences]
    scheduler.policy.check()
    if not state.with_slots():  # retained for their sessions
        usage = scheduler.policy.usage()
        assert (usage.live, usage.held, usage.allocated) == held_at_first[1:4]
    table = recorder.requests.columns()
    assert sorted(table["request_id"].tolist()) == sorted(
        request.request_id for request in requests
    )


@some
@given(
    ANY_POLICY,
    schedulers(),
    st.one_of(workloads(), with_shared_prompts(workloads())),
    cancellations(),
    st.sampled_from(COSTS),
)
def test_fast_equals_slow_with_unannounced_events(
    make_policy, make_scheduler, requests, cancelled, cost
):
    recorders = []
    for fast_forward in (True, False):
        scheduler = make_scheduler(make_policy())
        held_at_first = scheduler.policy.usage()
        recorders.append(run(requests, cancelled, scheduler, cost, fast_forward=fast_forward))
        check_empty(scheduler, recorders[-1], requests, held_at_first)
    assert_same(*recorders)
    assert recorders[0].cancellations == recorders[1].cancellations


open_loops = whole_runs().filter(
    lambda whole_run: not isinstance(whole_run[1], AnswerDrivenWorkload)
)


def check_outside_events(whole_run, cancelled):
    make, requests, cost, _ = whole_run
    recorders = []
    for fast_forward in (True, False):
        scheduler = make()
        held_at_first = scheduler.policy.usage()
        recorders.append(run(requests, cancelled, scheduler, cost, fast_forward=fast_forward))
        check_empty(scheduler, recorders[-1], requests, held_at_first)
    assert_same(*recorders)
    assert recorders[0].cancellations == recorders[1].cancellations


@settings(some, max_examples=examples(20))
@given(open_loops, cancellations())
def test_fast_equals_slow_with_unannounced_events_in_whole_runs(whole_run, cancelled):
    check_outside_events(whole_run, cancelled)


@pytest.mark.slow
@settings(some, max_examples=1000)
@given(open_loops, cancellations())
def test_fast_equals_slow_with_unannounced_events_in_1000_whole_runs(whole_run, cancelled):
    check_outside_events(whole_run, cancelled)


@some
@given(policies([ContiguousMax]), workloads(), cancellations(), st.integers(1, 9))
def test_fast_equals_slow_with_static_batches(make_policy, requests, cancelled, max_batch_size):
    recorders = []
    for fast_forward in (True, False):
        scheduler = StaticBatch(
            make_policy(),
            Recompute(),
            max_batch_size=max_batch_size,
            max_padded_len=MAX_LEN,
            lengths={},
        )
        held_at_first = scheduler.policy.usage()
        cost = FastMillisecond()
        recorders.append(run(requests, cancelled, scheduler, cost, fast_forward=fast_forward))
        check_empty(scheduler, recorders[-1], requests, held_at_first)
    assert_same(*recorders)


@some
@given(ANY_POLICY, schedulers(), workloads(), cancellations(), st.sampled_from(COSTS))
def test_tokens_are_listed_at_the_ends_of_their_iterations(
    make_policy, make_scheduler, requests, cancelled, cost
):
    """A listener changes nothing, and gets the same events in spans and step by step."""
    silent = run(requests, cancelled, make_scheduler(make_policy()), cost, fast_forward=True)
    events = []
    for fast_forward in (True, False):
        ends = Ends()
        scheduler = make_scheduler(make_policy())
        recorder = run(
            requests,
            cancelled,
            scheduler,
            cost,
            fast_forward=fast_forward,
            listener=ends,
            tokens=True,
        )
        if not fast_forward:
            assert_same(silent, recorder)
        events.append(ends.events)
    assert sorted(events[0]) == sorted(events[1])
    assert [line[-1] for line in events[0]] == sorted(line[-1] for line in events[0])
    table = recorder.requests.columns()
    lengths = dict(zip(table["request_id"].tolist(), table["output_len"].tolist(), strict=True))
    counts = dict.fromkeys(lengths, 0)
    first = {}
    for kind, request_id, *rest in events[0]:
        if kind == "tokens":
            counts[request_id] += rest[0]
            first.setdefault(request_id, rest[1])
    rejected = recorder.rejections
    assert counts == {
        request_id: 0 if request_id in rejected else n for request_id, n in lengths.items()
    }
    firsts = dict(zip(table["request_id"].tolist(), table["first_token_ps"].tolist(), strict=True))
    assert first == {request_id: at_ps for request_id, at_ps in firsts.items() if at_ps >= 0}


class HandsOn(Listener):
    """A request that has ended here is submitted to another engine at once."""

    def __init__(self, other, names):
        self.other = other
        self.names = names
        self.requests = {}

    def on_finished(self, request_id, time_ps):
        request = self.requests[request_id]
        self.other.submit(request._replace(request_id=next(self.names), arrival_ps=time_ps))

    def on_cancelled(self, request_id, time_ps):
        self.on_finished(request_id, time_ps)


@pytest.mark.parametrize("first", [0, 1])
@settings(max_examples=examples(30))
@given(ANY_POLICY, schedulers(), workloads(), cancellations(), st.sampled_from(COSTS))
def test_engines_that_share_a_clock_are_fast_and_slow_alike(
    first, make_policy, make_scheduler, requests, cancelled, cost
):
    """One hands its answered requests to the other, whose turn comes before or after its own."""
    runs = []
    for fast_forward in (True, False):
        clock = SimClock(simpy.Environment(0))
        recorders = [Recorder(), Recorder()]
        engines = [
            engine_of(clock, make_scheduler(make_policy()), cost, recorder, fast_forward)
            for recorder in recorders
        ]
        hand_on = HandsOn(engines[1 - first], count(1000))
        hand_on.requests = {request.request_id: request for request in requests}
        engines[first].listen(hand_on)
        clock.env.process(outside(clock.env, calls_of(engines[first], requests, cancelled)))
        for engine in engines:
            clock.start(engine.serve())
        clock.env.run()
        for engine in engines:
            engine.close()
        clock.env.run()
        runs.append(recorders)
    for fast, slow in zip(*runs, strict=True):
        assert_same(fast, slow)
    sender, receiver = runs[0][first].totals, runs[0][1 - first].totals
    assert receiver.arrived == sender.finished + sender.cancelled
