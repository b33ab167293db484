"""Records and costs of small runs, followed by hand; every iteration takes a
millisecond.
"""

import numpy as np
import pytest
from manual_driver import paged, scheduler_of
from same_runs import assert_same_rows
from tiny import MS, FastMillisecond, OneMillisecond

from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Rows, Workload
from testbed.core.sequence import SequenceGroup
from testbed.cost.model import UNBOUNDED, Affine
from testbed.engine.clients import OpenLoop
from testbed.engine.engine_parts import EngineParts
from testbed.engine.overload import Overloaded, WatchfulRecorder
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulate, simulated_engine
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.beam_search import BeamModel
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch

COSTS = [OneMillisecond(), FastMillisecond()]


class RecordingCost(OneMillisecond):
    """Keeps what it was asked for the cost of."""

    def __init__(self):
        self.works = []

    def iteration(self, work):
        self.works.append(work)
        return super().iteration(work)


def run(requests, cost, policy=None, rule=Recompute, kind=SeparatePrefill, **options):
    return simulate(
        requests,
        scheduler_of(kind, policy or paged(160, max_len=512), rule()),
        cost,
        512,
        **options,
    )


def tight(kind=Paged):
    """Two requests of 8 + 20 tokens do not fit: the second is preempted, and has to wait for the
    first.
    """
    return paged(10, kind, host_blocks=100, max_len=512)


PAIR = [Request(i, arrival_ps=0, prompt_len=8, output_len=20) for i in range(2)]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(
    ("stop_ps", "num_iterations"),
    [
        pytest.param(3 * MS, 3, id="at a boundary"),
        pytest.param(3 * MS - 1, 3, id="before a boundary"),
        pytest.param(3 * MS + 1, 4, id="behind a boundary"),
    ],
)
def test_run_stops_at_the_end_of_an_iteration(cost, stop_ps, num_iterations):
    request = Request(0, arrival_ps=0, prompt_len=4, output_len=10)
    recorder = run([request], cost, stop_ps=stop_ps)
    assert recorder.totals.iterations == num_iterations
    assert recorder.end_ps == num_iterations * MS


@pytest.mark.parametrize("cost", COSTS)
def test_an_idle_run_stops_on_time_before_later_arrivals(cost):
    """The first request ends at 10 ms; the next would come at 90."""
    recorder = run(
        [
            Request(0, arrival_ps=0, prompt_len=4, output_len=10),
            Request(1, arrival_ps=90 * MS, prompt_len=4, output_len=10),
        ],
        cost,
        snapshots_ps=[30 * MS],
        stop_ps=50 * MS,
    )
    assert (recorder.end_ps, recorder.totals.arrived, recorder.totals.finished) == (50 * MS, 1, 1)
    assert [snapshot.time_ps for snapshot in recorder.snapshots.values()] == [30 * MS, 50 * MS]


def test_a_run_stops_early_exactly_where_its_mean_latency_will_exceed_the_limit():
    """Every 64th request is looked at, and so is the last: the bound is the mean then."""
    workload = Workload(Rows(np.full(128, 8), 4 + np.arange(128) % 9), np.arange(128) * 2 * MS)
    served = run(workload, COSTS[0]).requests.columns()
    mean = np.mean((served["finish_ps"] - served["arrival_ps"]) / served["output_len"]) / PS
    run(workload, COSTS[0], recorder=WatchfulRecorder(workload, mean * 1.0001))
    with pytest.raises(Overloaded) as stopped:
        run(workload, COSTS[0], recorder=WatchfulRecorder(workload, mean * 0.9999))
    assert stopped.value.at_least == pytest.approx(mean)
    with pytest.raises(Overloaded) as stopped:
        run(workload, COSTS[0], recorder=WatchfulRecorder(workload, mean / 10))
    assert mean / 10 < stopped.value.at_least < mean


def test_a_request_without_a_latency_lifts_the_limit_of_a_mean():
    """A prompt beyond the pool is rejected, and a request is cancelled: the run goes on."""
    workload = Workload(Rows(np.append(999, np.full(127, 8)), np.full(128, 4)), np.arange(128) * MS)
    recorder = WatchfulRecorder(workload, 1e-6)
    run(workload, COSTS[0], recorder=recorder)
    assert (recorder.totals.finished, recorder.totals.rejected) == (127, 1)
    recorder = WatchfulRecorder(workload, 1e-6)
    recorder.cancelled(PAIR[0], SequenceGroup(PAIR[0].incoming, []), 0)
    run(list(workload)[1:], COSTS[0], recorder=recorder)
    assert recorder.totals.finished == 127


LAST_MS = 9_000_000_000  # of what may arrive; 64 bits count 223 days of milliseconds more


@pytest.mark.parametrize("kind", [OneMillisecond, FastMillisecond])
def test_simulation_continues_past_the_last_arrival(kind):
    """2^62 ps, where runs once stopped without a word, are 4,611,686 s."""
    requests = [
        Request(i, arrival_ps=i * 10**6 * PS, prompt_len=4, output_len=10) for i in range(10)
    ]
    fast, slow = (
        run(requests, kind(), fast_forward=fast_forward) for fast_forward in (True, False)
    )
    assert fast.totals.finished == slow.totals.finished == 10
    assert fast.end_ps == slow.end_ps == (LAST_MS + 10) * MS
    assert fast.totals == slow.totals
    assert_same_rows(fast.requests, slow.requests)
    assert fast.requests.columns()["finish_ps"].tolist() == [
        request.arrival_ps + 10 * MS for request in requests
    ]


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("output_len", [1, 3, 500])
def test_a_run_beyond_the_end_of_time_is_refused(output_len, fast_forward):
    class Slow(FastMillisecond):
        def iteration(self, work):
            return (1 << 62) + 1

        def decode(self, work):
            return Affine((1 << 62) + 1, 0, UNBOUNDED)

    requests = [Request(0, arrival_ps=9_000_000 * PS, prompt_len=4, output_len=output_len)]
    with pytest.raises(InputError, match="the run: "):
        run(requests, Slow(), fast_forward=fast_forward).requests.columns()


class SaysItLate(Paged):
    """Answers NEVER only when the slots are requested."""

    max_seq_len = MemoryPolicy.max_seq_len


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(
    "others",
    [
        [],
        [Request(0, arrival_ps=0, prompt_len=8, output_len=20)],
        [
            Request(0, arrival_ps=0, prompt_len=8, output_len=20),
            Request(2, arrival_ps=0, prompt_len=8, output_len=20),
        ],
    ],
)
def test_request_that_never_fits_is_rejected_and_others_are_served(others, cost):
    """The second of these prompts is longer than the pool of 40 slots."""
    requests = sorted(
        [
            *others,
            Request(1, arrival_ps=0, prompt_len=80, output_len=20),
            Request(3, arrival_ps=200 * MS, prompt_len=80, output_len=20),
            Request(4, arrival_ps=201 * MS, prompt_len=8, output_len=2),
        ]
    )
    recorder = run(requests, cost, tight(SaysItLate))
    assert recorder.rejections == dict.fromkeys((1, 3), "the memory policy can never hold it")
    assert recorder.totals.rejected == 2
    assert recorder.totals.finished == len(others) + 1
    assert recorder.end_ps == 203 * MS


@pytest.mark.parametrize("cost", COSTS)
def test_snapshots_have_the_totals_at_their_times(cost):
    recorder = run(
        [Request(0, arrival_ps=0, prompt_len=4, output_len=10)],
        cost,
        snapshots_ps=[7 * MS, 2 * MS + 5],
    )
    kept = {
        requested: (snapshot.time_ps, snapshot.totals.iterations)
        for requested, snapshot in recorder.snapshots.items()
    }
    assert kept == {2 * MS + 5: (3 * MS, 3), 7 * MS: (7 * MS, 7)}
    live = [snapshot.totals.per_iteration.live for snapshot in recorder.snapshots.values()]
    assert live == [4 + 5 + 6, 4 + 5 + 6 + 7 + 8 + 9 + 10]


@pytest.mark.parametrize("cost", COSTS)
def test_first_token_time_survives_recompute(cost):
    recorder = run(PAIR, cost, tight())
    log = recorder.requests.columns()
    assert log["first_token_ps"].tolist() == [MS, MS]
    assert (recorder.totals.swaps, recorder.totals.recomputes) == (0, 1)
    assert log["num_recomputes"].tolist() == [0, 1]


def test_work_counts_requests_and_repeated_shared_context():
    cost = RecordingCost()
    run(
        [
            Request(0, arrival_ps=0, prompt_len=8, output_len=4, num_seqs=3),
            Request(1, arrival_ps=0, prompt_len=8, output_len=4),
        ],
        cost,
    )
    prompts, *decodes = cost.works
    assert prompts.prefill == ((8, 0), (8, 0))
    assert [work.num_requests for work in cost.works] == [2] * 4
    assert [
        (work.decode_seqs, work.decode_context, work.decode_max_context) for work in decodes
    ] == [
        (4, 36, 9),
        (4, 40, 10),
        (4, 44, 11),
    ]
    assert [work.decode_repeated for work in decodes] == [2 * 8] * 3


def test_work_counts_copies_and_swaps_by_length():
    cost = RecordingCost()
    recorder = run(
        [Request(0, arrival_ps=0, prompt_len=10, output_len=5, num_seqs=3)],
        cost,
        ContiguousMax(PoolSpec(4 * 512, 512)),
    )
    assert (recorder.totals.generated, recorder.totals.copies) == (15, 2)
    assert [work.copies for work in cost.works if work.copies] == [((512, 2),)]
    cost = RecordingCost()
    run(PAIR, cost, tight(), Swap)
    assert [
        sum(moved.num_transfers for moved in work.moves) for work in cost.works if work.moves
    ] == [5, 5]
    assert [sum(moved.extents for moved in work.moves) for work in cost.works if work.moves] == [
        1,
        1,
    ]


@pytest.mark.parametrize("cost", COSTS)
def test_cached_blocks_are_counted_until_eviction(cost):
    """Ten blocks, four of them cached when the second request comes; its 34 tokens take one after
    another of them.
    """
    policy = paged(10, PrefixCaching)
    requests = [
        Request(0, arrival_ps=0, prompt_len=17, output_len=1, prompt_ids=tuple(range(17))),
        Request(1, arrival_ps=5 * MS, prompt_len=4, output_len=30),
    ]
    recorder = simulate(requests, scheduler_of(SeparatePrefill, policy, Recompute()), cost, 64)
    assert policy.counters()["evictions"] == 3  # the last token is never stored: nine blocks
    cached = 30 * 16 - 4 * (
        1 + 5 + 9
    )  # a block less in the last iteration, in the last five, in the last nine
    assert recorder.totals.per_iteration.cached == cached
    assert recorder.totals.over_time.cached == cached * MS


def serve_static(requests, cost):
    lengths = {}
    scheduler = StaticBatch(
        ContiguousMax(PoolSpec(2048, 512)),
        Recompute(),
        max_batch_size=4,
        max_padded_len=512,
        lengths=lengths,
    )
    return simulate(requests, scheduler, cost, 512, lengths=lengths)


def test_static_batch_pads_every_sequence_to_the_maximum():
    cost = RecordingCost()
    serve_static(
        [
            Request(0, arrival_ps=0, prompt_len=30, output_len=2),
            Request(1, arrival_ps=0, prompt_len=10, output_len=3),
        ],
        cost,
    )
    assert [work.prefill for work in cost.works] == [((30, 0), (30, 0)), (), ()]
    assert [work.decode_context for work in cost.works] == [
        0,
        2 * 31,
        2 * 32,
    ]  # also of the one that has its output
    assert [work.decode_seqs for work in cost.works] == [0, 2, 2]
    assert [work.decode_max_context for work in cost.works] == [0, 31, 32]


def test_static_batch_ends_with_its_last_output():
    """200 + 313 tokens would be 513, and 490 + 313 are more too: two run together, then each of the
    others alone.
    """
    requests = [
        Request(0, arrival_ps=0, prompt_len=200, output_len=5),
        Request(1, arrival_ps=0, prompt_len=10, output_len=300),
        Request(2, arrival_ps=0, prompt_len=10, output_len=313),
        Request(3, arrival_ps=0, prompt_len=490, output_len=10),
    ]
    log = serve_static(requests, OneMillisecond()).requests.columns()
    ends = dict(zip(log["request_id"].tolist(), log["finish_ps"].tolist(), strict=True))
    assert ends == {0: 300 * MS, 1: 300 * MS, 2: (300 + 313) * MS, 3: (300 + 313 + 10) * MS}


class Replaces(BeamModel):
    """The first candidate takes the place of the second at every step."""

    def parents(self, request, num_generated):
        return ((0, 1),)


@pytest.mark.parametrize("beam", [False, True])
def test_forks_are_counted_in_the_following_iteration(beam):
    cost = RecordingCost()
    scheduler = MixedPrefill(
        Paged(PoolSpec(4096, 128)), Recompute(), max_num_batched_tokens=64, max_num_seqs=8
    )
    requests = Workload(Rows(np.array([5]), np.array([4])), np.array([0]), 3, beam)
    simulate(requests, scheduler, cost, 128, beams=Replaces())
    assert [work.forks for work in cost.works] == ([0, 2, 1, 1] if beam else [0, 2, 0, 0])


def engine_on(clock):
    scheduler = scheduler_of(SeparatePrefill, paged(160, max_len=512), Recompute())
    engine = simulated_engine(clock, EngineParts(scheduler, FastMillisecond(), 512), Recorder())
    clock.start(engine.serve())
    return engine


def test_events_of_another_engine_on_the_clock_end_no_span():
    """The second engine has an arrival in each millisecond."""
    clock = SimClock()
    engines = [engine_on(clock) for _ in range(2)]
    OpenLoop(
        clock,
        engines[0],
        [
            Request(0, arrival_ps=0, prompt_len=8, output_len=200),
            Request(1, arrival_ps=90 * MS, prompt_len=8, output_len=20),
        ],
    ).start()
    OpenLoop(
        clock,
        engines[1],
        [Request(i, arrival_ps=i * MS, prompt_len=4, output_len=2) for i in range(180)],
    ).start()
    clock.env.run()
    spans = engines[0].recorder.spans.columns()["iterations"].tolist()
    assert spans == [1, 89, 1, 19, 91]
    assert engines[1].recorder.totals.finished == 180


@pytest.mark.parametrize(("at_ps", "steps"), [(50 * MS, 49), (50 * MS + 1, 50)])
def test_an_unannounced_arrival_ends_the_span_at_the_next_boundary(at_ps, steps):
    clock = SimClock()
    engine = engine_on(clock)
    engine.submit(Request(0, arrival_ps=0, prompt_len=8, output_len=200))
    clock.call_at(
        at_ps, lambda: engine.submit(Request(1, arrival_ps=at_ps, prompt_len=8, output_len=20))
    )
    clock.call_at(at_ps, engine.close)
    clock.env.run()
    assert engine.recorder.spans.columns()["iterations"].tolist()[:2] == [1, steps]


def test_an_unannounced_arrival_ends_a_span_that_follows_another():
    """Request 1 ends after 20 ms, and the arrival is in the span behind that."""
    clock = SimClock()
    engine = engine_on(clock)
    for number, output_len in enumerate((200, 20)):
        engine.submit(Request(number, arrival_ps=0, prompt_len=8, output_len=output_len))
    clock.call_at(50 * MS + 1, lambda: engine.submit(Request(2, 50 * MS + 1, 8, 20)))
    clock.call_at(50 * MS + 1, engine.close)
    clock.env.run()
    assert engine.recorder.spans.columns()["iterations"].tolist()[:3] == [1, 19, 31]


def test_the_steps_that_reach_a_time_are_the_fewest_for_any_growth():
    for first in (1, 7, 10**9):
        for growth in (0, 1, 3, 2 * first, -1 if first > 100 else 0):
            durations = Affine(first, growth, UNBOUNDED)
            for elapsed in (-5, 0, 1, first, first + 1, 13 * first + 5, 10**4 * first - 1):
                steps = durations.steps_to_reach(elapsed)
                assert steps >= 1
                assert durations.total_ps(steps) >= elapsed
                assert steps == 1 or durations.total_ps(steps - 1) < elapsed


def test_the_bound_of_a_mean_counts_what_has_arrived_and_is_not_finished():
    """Those have been waited for since they arrived: the sum by the rows of the recorder."""
    workload = Workload(Rows(np.full(256, 8), 4 + np.arange(256) % 9), np.arange(256) * MS // 4)
    recorder = WatchfulRecorder(workload, 1e-4)
    with pytest.raises(Overloaded) as stopped:
        run(workload, COSTS[0], recorder=recorder)
    done, now_ps = recorder.requests.columns(), stopped.value.now_ps
    latency_ps = dict.fromkeys(np.flatnonzero(workload.arrival_ps <= now_ps).tolist())
    for number in latency_ps:
        latency_ps[number] = now_ps - workload.arrival_ps[number]
    for number, end_ps in zip(done["request_id"], done["finish_ps"], strict=True):
        latency_ps[number] = end_ps - workload.arrival_ps[number]
    mean = sum(ps / workload.rows.output_len[n] for n, ps in latency_ps.items()) / 256 / PS
    assert len(done["request_id"]) < len(latency_ps)
    assert stopped.value.at_least == pytest.approx(mean)
