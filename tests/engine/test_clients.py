"""Times of requests: arrivals, an open loop, a closed one after the answers that it waits for;
transfers on links.
"""

import numpy as np
import pytest
import simpy
from manual_driver import scheduler_of
from refusals import refuses
from same_runs import check_both_ways
from test_simulation import SaysItLate
from tiny import MS, FastMillisecond, OneMillisecond

from testbed.core.request import PS, Request, Rows, Turns
from testbed.core.slots import DEVICE, Copy, Move, Transfer
from testbed.cost.model import CostModel
from testbed.engine import arrivals
from testbed.engine.arrivals import (
    Gamma,
    Poisson,
    Replay,
    Sessions,
    SessionWorkload,
    Slotted,
    likely_order,
    renewal_times,
)
from testbed.engine.links import Links
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulate
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.orders import TimeToLive
from testbed.sched.preemption import Recompute


def turns(session, after, wait_s, answer_s=None):
    wait_s = np.array(wait_s, float)
    return Turns(
        np.array(session),
        after,
        wait_s,
        np.zeros(len(after)) if answer_s is None else np.array(answer_s),
    )


def times(links, *, at_once=1, gap_s=0.0, lengths=(10, 5), max_len=512, kind=Paged):
    """Arrivals and ends in ms by row, each iteration of 1 ms, so an answer of 5 tokens takes 5
    ms.
    """
    size = len(links)
    prompts, outputs = (np.broadcast_to(np.array(part), size).copy() for part in lengths)
    workload = SessionWorkload(
        Rows(prompts, outputs, turns=links),
        np.zeros(size, np.int64),
        at_once=at_once,
        gap_ps=round(gap_s * PS),
    )
    policy = kind(PoolSpec(1600, max_len), block_size=16)
    recorder = simulate(
        workload, scheduler_of(MixedPrefill, policy, Recompute()), OneMillisecond(), max_len
    )
    columns = recorder.requests.columns()
    order = np.argsort(columns["request_id"])
    return [(columns[name][order] // MS).tolist() for name in ("arrival_ps", "finish_ps")], recorder


def test_next_turn_follows_the_last_answer_after_think_time():
    one_after_another = turns(session=[0, 0, 0], after=[(), (0,), (1,)], wait_s=[0, 0.1, 0.007])
    (sent_ms, ends_ms), _ = times(one_after_another)
    assert sent_ms == [0, 5 + 100, 110 + 7]
    assert ends_ms == [5, 105 + 5, 117 + 5]


def test_parent_waits_for_its_last_sub_agent():
    """Rows 1 and 2 follow row 0, and row 3 follows all of them."""
    sub_agents = turns(
        session=[0] * 4, after=[(), (0,), (0,), (0, 1, 2)], wait_s=[0, 0.01, 0.03, 0.002]
    )
    (sent_ms, ends_ms), _ = times(sub_agents)
    assert sent_ms == [0, 5 + 10, 5 + 30, 40 + 2]
    assert ends_ms[2] == 40


def test_concurrent_sessions_are_limited_and_staggered():
    links = turns([0, 1, 2, 3], [()] * 4, [0, 0, 0, 0.02])
    (sent, _), _ = times(links, at_once=2, gap_s=0.003)
    assert sent == [0, 3, 5, 8 + 20]


@pytest.mark.parametrize("kind", [Paged, SaysItLate])
def test_session_continues_after_a_rejected_request(kind):
    (sent, _), recorder = times(
        turns([0, 0], [(), (0,)], [0, 0.004]), lengths=([1700, 10], 5), max_len=2000, kind=kind
    )
    assert recorder.totals.rejected == 1
    assert sent == [0, 4]


def test_a_session_that_ends_by_a_rejection_gives_back_its_slots_at_the_next_boundary():
    """Session 0 retains 24 slots until its second request is turned away, while session 1 decodes
    in a span that no other event ends.
    """
    prompts, outputs, wait_s = np.array([16, 200, 16]), np.array([5, 1, 60]), [0.0, 0.0105, 0.0]
    rows = Rows(prompts, outputs, turns=turns([0, 0, 1], [(), (0,), ()], wait_s))
    workload = SessionWorkload(rows, np.zeros(3, np.int64), at_once=2)

    def make():
        policy = Paged(PoolSpec(128, 128), block_size=8)
        return scheduler_of(ChunkedPrefill, policy, Recompute(), order=TimeToLive(100.0))

    check_both_ways(workload, make, FastMillisecond(), 128)
    recorder = simulate(workload, make(), FastMillisecond(), 128)
    spans = recorder.spans.columns()
    ends = [round(int(time) / MS) for time in spans["start_ps"] + spans["duration_ps"]]
    assert recorder.totals.rejected == 1
    assert 16 in ends  # the boundary behind the rejection at 15.5 ms


def test_workload_without_requests_ends_at_once():
    _, recorder = times(
        turns(np.empty(0, np.int64), [], []), lengths=(np.empty(0, int), np.empty(0, int))
    )
    assert recorder.end_ps == 0


def test_likely_order_keeps_turns_and_session_slots():
    links = turns([0, 0, 1, 2], [(), (0,), (), ()], [0, 10, 0, 0], [1, 1, 3, 1])
    assert likely_order(links, 2, 0.5).tolist() == [0, 2, 3, 1]
    assert likely_order(links, 2, 4.0).tolist() == [0, 2, 3, 1]
    apart = turns(range(4), [()] * 4, [0.0] * 4, [9, 1, 5, 1])
    assert likely_order(apart, 2, 2.0).tolist() == [0, 1, 2, 3]
    assert likely_order(apart, 3, 8.5).tolist() == [0, 1, 3, 2]
    taken = links.take(np.array([0, 2, 3, 1]))
    assert taken.after == [(), (), (), (0,)]
    assert taken.session.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("links", "culprit"),
    [
        (([0, 0], [(1,), ()], [0, 0]), "row 0: after="),
        (([0, 1], [(), (0,)], [0, 0]), "row 1: after="),
        (([0], [()], [-1]), "row 0: wait_s=-1.0"),
        (([0], [()], [np.nan]), "row 0: wait_s=nan"),
    ],
)
def test_invalid_turns_are_refused(links, culprit):
    refuses(culprit, turns, *links)


def test_sessions_need_turns_and_cut_long_think_times():
    rows = Rows(np.array([3, 4]), np.array([1, 1]))
    refuses("trace=agent_sessions", lambda: Sessions(2).workload(rows, 1, False, 0))
    rows = Rows(rows.prompt_len, rows.output_len, turns=turns([0, 0], [(), (0,)], [0, 90]))
    assert Sessions(2, max_think_s=60).workload(rows, 1, False, 0).turns.wait_s.tolist() == [0, 60]
    refuses("at_once=0", Sessions, 0)
    refuses("arrivals: ", lambda: Sessions(1).times_ps(rows, 0))
    assert len(Poisson(1, 10).times_ps(None, 0))


def first_tokens_ms(requests, fast_forward):
    scheduler = scheduler_of(MixedPrefill, Paged(PoolSpec(1024, 512)), Recompute())
    columns = simulate(
        requests, scheduler, FastMillisecond(), 512, fast_forward=fast_forward
    ).requests.columns()
    return {
        i: t / MS
        for i, t in zip(
            columns["request_id"].tolist(), columns["first_token_ps"].tolist(), strict=True
        )
    }


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("arrival_ms", [1, 2, 57])
def test_arrival_at_an_iteration_end_joins_the_next_iteration(arrival_ms, fast_forward):
    requests = [
        Request(0, arrival_ps=0, prompt_len=10, output_len=200),
        Request(1, arrival_ps=arrival_ms * MS, prompt_len=10, output_len=2),
    ]
    assert first_tokens_ms(requests, fast_forward) == {0: 1, 1: arrival_ms + 1}


def test_slotted_arrivals_match_the_protocol_code(monkeypatch):
    np.random.seed(3)
    counts = np.random.poisson(4.0 * 0.010, size=900 * 100)
    expected = [i * PS // 100 for i, count in enumerate(counts) for _ in range(count)]
    assert Slotted(4.0, 900).times_ps(None, 3).tolist() == expected
    monkeypatch.setattr(arrivals, "SLOTS_AT_ONCE", 1000)
    assert Slotted(4.0, 900).times_ps(None, 3).tolist() == expected


@pytest.mark.parametrize("process", [Poisson(5.0, 2000), Gamma(5.0, 2000, burstiness=4.0)])
def test_arrivals_have_rate_order_and_seed(process):
    times = process.times_ps(None, 0)
    assert len(times) == pytest.approx(10_000, rel=0.1)
    assert (np.diff(times) >= 0).all()
    assert (
        times.tolist() == process.times_ps(None, 0).tolist() != process.times_ps(None, 1).tolist()
    )


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_configured_mean_and_burstiness(burstiness):
    gaps = np.diff(Gamma(20.0, 5000, burstiness).times_ps(None, 0)) / PS
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(burstiness, rel=0.06)


def test_gaps_go_on_if_more_are_needed_than_are_drawn_at_once():
    """In bursts: the first 284 gaps, of the 200 that are expected, end before 20 s."""
    gaps = np.random.default_rng(3).gamma(0.05, 1 / (10 * 0.05), size=1000)
    expected_s = np.cumsum(gaps)
    times_ps = renewal_times(np.random.default_rng(3), 0.05, 10, 20)
    assert len(times_ps) > 284
    assert times_ps / PS == pytest.approx(expected_s[expected_s < 20])


def test_replay_keeps_trace_times_scaled_by_speedup():
    lengths = np.array([1, 1, 1])
    rows = Rows(lengths, lengths, np.array([0.0, 0.3, 2.0]))
    assert Replay().times_ps(rows, 0).tolist() == [0, 3 * PS // 10, 2 * PS]
    assert Replay(speedup=4).times_ps(rows, 1).tolist() == [0, 75 * PS // 1000, PS // 2]


@pytest.mark.parametrize(
    ("stamps", "worst"), [([0.0, np.nan, 1e9], "nan s"), ([-1e9, 0.0, 1e8], "-1e.09 s")]
)
def test_replay_refuses_the_stamp_that_is_farthest_from_any_time(stamps, worst):
    lengths = np.array([1, 1, 1])
    refuses(f"a request at {worst}", Replay().times_ps, Rows(lengths, lengths, np.array(stamps)), 0)


class OnePsASlot(CostModel):
    def iteration(self, work):
        return 1

    def transfer(self, moves):
        return sum(move.length * move.num_transfers for move in moves)


def transfer(move_id, num_slots, is_load=True, tier="dram"):
    ends = (tier, DEVICE) if is_load else (DEVICE, tier)
    return Transfer(move_id, Move(*ends, (Copy(0, 0, num_slots),)))


def landings(begins):
    """The landing of each transfer, of those that begin at given times, in order."""
    env, seen = simpy.Environment(0), []
    links = Links(
        SimClock(env),
        OnePsASlot(),
        lambda: seen.extend((env.now, transfer) for transfer in links.take_landed()),
    )

    def clients():
        for begin_ps, transfer in begins:
            yield env.timeout(begin_ps - env.now)
            links.begin([transfer])

    env.process(clients())
    env.run()
    assert not links.num_pending
    return seen


@pytest.mark.parametrize(
    ("begins", "expected"),
    {
        "one has the link to itself": ([(5, transfer(1, 10))], [(15, 1)]),
        "two loads share it": ([(0, transfer(1, 10)), (0, transfer(2, 20))], [(20, 1), (30, 2)]),
        "a later load slows down the first": (
            [(0, transfer(1, 10)), (4, transfer(2, 3))],
            [(10, 2), (13, 1)],
        ),
        "stores wait for loads": (
            [(0, transfer(1, 10, False)), (4, transfer(2, 10))],
            [(14, 2), (20, 1)],
        ),
        "each tier has a link": (
            [(0, transfer(1, 10)), (0, transfer(2, 10, True, "nvme"))],
            [(10, 1), (10, 2)],
        ),
    }.values(),
)
def test_transfers_share_a_link_equally_and_loads_go_first(begins, expected):
    assert landings(begins) == expected
