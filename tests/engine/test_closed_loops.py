"""Closed loops by concurrency, by sessions with think times, and by a rate with a bound in flight;
hits of each request.
"""

from heapq import heappop, heappush

import numpy as np
import pandas as pd
import pytest
from refusals import refuses

import testbed
from testbed.core.request import PS, Rows
from testbed.engine.arrivals import Concurrency, Sessions, turns_in_order
from testbed.engine.benchmark import Benchmark

LOOP = {"trace": "random", "model": "opt-13b", "arrivals": "closed_loop"}
LENGTHS = {"trace.input_len": 300, "trace.output_len": 40, "trace.input_ratio": 0.5}


def unanswered(table):
    """Requests that are unanswered from each time on, by time."""
    comes = pd.Series(1, table["arrival_s"]).groupby(level=0).sum()
    goes = pd.Series(-1, table["finish_s"]).groupby(level=0).sum()
    return comes.add(goes, fill_value=0).cumsum()


@pytest.mark.parametrize("policy", ["paged", "prefix_caching", "contiguous_max"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_a_loop_always_has_its_concurrency_while_requests_remain(policy, replicas):
    options = {"arrivals.concurrency": 6, "arrivals.num_requests": 50, "policy": policy}
    if replicas:
        options["replicas"] = replicas
    table = testbed.simulate(**LOOP, **LENGTHS, **options).requests
    counts = unanswered(table)
    last = table["arrival_s"].max()
    assert len(table) == 50
    assert set(counts[counts.index < last]) == {6}
    assert counts.max() == 6


def test_a_loop_goes_on_after_rejected_requests():
    prompts = np.array([100, 5000, 5000, 100, 100])
    workload = Concurrency(1, None).workload(Rows(prompts, np.full(5, 3)), 1, beam=False, seed=0)
    run = testbed.simulate(model="opt-13b", trace=workload)
    assert run.summary["requests"] == {"arrived": 5, "finished": 3, "rejected": 2}


BENCHMARK = {**LOOP, "arrivals": "benchmark", "arrivals.rate": 20, "arrivals.num_requests": 80}


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_benchmark_sends_when_due_or_when_an_answer_frees_a_place(replicas):
    options = {"arrivals.max_in_flight": 5, "arrivals.ends_on_time": False, "seed": 3}
    if replicas:
        options["replicas"] = replicas
    run = testbed.simulate(**BENCHMARK, **LENGTHS, **options)
    due_s = np.cumsum(np.random.default_rng([3, 1]).gamma(1, 1 / 20, size=80))
    due_s -= due_s[0]  # sglang's client sends the first request at once, and n - 1 gaps follow
    table, ends, waited = run.requests.sort_values("request_id"), [], 0
    for due, sent, end in zip(due_s, table["arrival_s"], table["finish_s"], strict=True):
        place_s = heappop(ends) if len(ends) == 5 else 0.0
        assert sent == pytest.approx(max(due, place_s), abs=1e-9)
        waited += place_s > due
        heappush(ends, end)
    assert 0 < waited < 80  # some are due while a place is free, and some are not


@pytest.mark.parametrize("burstiness", [1.0, 4.0])
def test_a_benchmark_ends_on_time_as_vllms_does(burstiness):
    """vLLM's get_request (vllm/benchmarks/serve.py): cumulated gaps, times n / rate over their
    sum.
    """
    rows = Rows(np.full(50, 8), np.full(50, 2))
    drawn, scaled = (
        Benchmark(5, burstiness=burstiness, ends_on_time=ends_on_time)
        .workload(rows, 1, beam=False, seed=0)
        .arrival_ps
        for ends_on_time in (False, True)
    )
    assert scaled[-1] == 10 * PS
    assert (drawn[0], len(drawn)) == (0, 50)
    gaps = np.diff(scaled) / scaled[0]
    np.testing.assert_allclose(np.diff(drawn) / drawn[-1], gaps / gaps.sum(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_requests_of_a_benchmark_come_at_its_rate_in_the_mean(burstiness):
    rows = Rows(np.full(4000, 8), np.full(4000, 2))
    benchmark = Benchmark(5, burstiness=burstiness, ends_on_time=False)
    arrival_ps = benchmark.workload(rows, 1, beam=False, seed=0).arrival_ps
    assert np.diff(arrival_ps).mean() / PS == pytest.approx(1 / 5, rel=0.1)


def test_a_bound_that_nothing_reaches_changes_nothing():
    runs = [
        testbed.simulate(**BENCHMARK, **LENGTHS, **{"arrivals.max_in_flight": bound})
        for bound in (80, None)
    ]
    pd.testing.assert_frame_equal(*[run.requests for run in runs])


def test_what_a_benchmark_cannot_do_is_refused():
    rows = Rows(np.full(2, 8), np.full(2, 2), session=np.zeros(2, int))
    with_turns = Rows(rows.prompt_len, rows.output_len, turns=turns_in_order(rows))
    refuses("arrivals=sessions", Benchmark(2).workload, with_turns, 1, False, 0)
    refuses("max_in_flight", Benchmark, 2, max_in_flight=0)
    bounded = {"arrivals": "benchmark", "arrivals.max_in_flight": 2}
    refuses(r"arrivals\.max_in_flight=2: ", testbed.capacity, ttft_s=1.0, **bounded)
    refuses("time ends", testbed.simulate, **{**BENCHMARK, "arrivals.rate": 1e-12})


def chat(delay_s, at_once=1):
    """The requests of four conversations of three turns."""
    return testbed.simulate(
        trace="guidellm",
        model="llama-3-8b",
        arrivals="sessions",
        policy="prefix_caching",
        **{
            "arrivals.at_once": at_once,
            "trace.turns": 3,
            "trace.num_conversations": 4,
            "trace.delay_s": delay_s,
        },
    ).requests


def test_more_sessions_at_once_than_there_are_change_nothing():
    assert chat(0.0, at_once=4).equals(chat(0.0, at_once=10**12))


def test_think_time_moves_arrivals_and_nothing_else():
    quick, slow = chat(0.0), chat(60.0)
    same = ["prompt_len", "output_len", "hit_tokens", "session"]
    assert quick[same].equals(slow[same])
    moved = (slow["arrival_s"] - quick["arrival_s"]).tolist()
    thinks = np.cumsum([0.0, 60.0, 60.0] * 4)
    assert moved == pytest.approx(thinks.tolist(), abs=1e-6)


def test_rows_of_a_session_follow_each_other_after_their_think_time():
    rows = Rows(
        np.full(4, 8), np.full(4, 2), session=np.array([7, 3, 7, 7]), think_s=np.arange(4.0)
    )
    turns = turns_in_order(rows)
    assert turns.session.tolist() == [0, 1, 0, 0]
    assert turns.after == [(), (), (0,), (2,)]
    assert turns.wait_s.tolist() == [0, 1, 2, 3]
    workload = Sessions(at_once=2).workload(rows, 1, beam=False, seed=0)
    assert workload.rows.sessions.tolist() == [0, 0, 0, 1]


def test_a_loop_by_concurrency_refuses_a_trace_with_turns():
    rows = Rows(np.full(2, 8), np.full(2, 2), session=np.zeros(2, int))
    with_turns = Rows(rows.prompt_len, rows.output_len, turns=turns_in_order(rows))
    refuses("arrivals=sessions", Concurrency(2).workload, with_turns, 1, False, 0)


def test_hits_of_requests_sum_to_the_counter_of_the_policy():
    options = {"policy": "prefix_caching", "trace.prefix_len": 100, "policy.block_size": 4}
    run = testbed.simulate(**LOOP, **LENGTHS, **options, **{"arrivals.num_requests": 40})
    hits = run.requests["hit_tokens"]
    assert hits.sum() == run.summary["counters"]["hit_tokens"] > 0
    assert set(hits) == {0, 100}


def test_hits_are_unknown_where_the_trace_names_no_contents():
    run = testbed.simulate(policy="prefix_caching", trace="sharegpt", rate=1, duration_s=20)
    assert run.requests["hit_tokens"].isna().all()
    assert "does not say" in run.summary["run"]["contents_note"]
    assert "contents unknown" in str(run)
    plain = testbed.simulate(policy="paged", trace="sharegpt", rate=1, duration_s=20)
    assert plain.summary["run"]["contents_note"] is None
