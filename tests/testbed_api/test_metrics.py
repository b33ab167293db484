"""Latencies, percentiles, shares and kept objectives of a handful of requests, worked out by
hand.
"""

import numpy as np
import pytest

from testbed.core.request import PS
from testbed.engine.gap_runs import GapParts, single_gaps
from testbed.engine.packed_rows import PackedRows
from testbed.engine.recorder import Recorder, Snapshot
from testbed.engine.token_gaps import TokenGaps
from testbed.engine.totals import Measures, Totals
from testbed.run.metrics import (
    KINDS,
    Slo,
    filling_s,
    goodput,
    kept,
    latencies,
    longest_gaps,
    overload,
    pool_shares,
    spread_of_gaps,
    summarize,
    user_speeds,
)

NAMES = ("request_id", "arrival_ps", "first_token_ps", "finish_ps", "output_len")


def log_of(*requests):
    """A recorder's rows of (arrival, first token, finish, output tokens), numbered from 0."""
    rows = PackedRows(*NAMES)
    for number, request in enumerate(requests):
        rows.append((number, *request))
    return rows


def test_latencies_skip_unserved_requests():
    served, one_token, unserved = (
        (2 * PS, 3 * PS, 7 * PS, 5),
        (4 * PS, 6 * PS, 6 * PS, 1),
        (5 * PS, -1, -1, 9),
    )
    measured = latencies(log_of(served, one_token, unserved, (0, PS, 2 * PS, 2)))
    assert measured["normalized_latency_s_per_token"].tolist() == [1.0, 2.0, 1.0]
    assert measured["ttft_s"].tolist() == [1.0, 2.0, 1.0]
    assert measured["tpot_s"].tolist() == [
        1.0,
        1.0,
    ]  # (7 - 3) / 4 and (2 - 1) / 1; one token has no gap


def totals(**sums):
    return Totals(iterations=2, per_iteration=Measures(**sums), over_time=Measures(**sums))


def test_memory_shares_follow_section_3_1():
    shares = pool_shares(totals(live=80, reserved=40, internal=20), num_slots=100, elapsed_ps=4)
    assert [shares[kind]["per_iteration"] for kind in KINDS] == pytest.approx([0.4, 0.2, 0.1, 0.3])
    assert shares["token_states"]["over_time"] == 0.2


def test_largest_free_excludes_allocated_and_fragmented_slots():
    free = pool_shares(
        totals(live=80, reserved=40, internal=20, rounding=6, external_fragmentation=14), 100, 4
    )
    assert free["largest_free"]["per_iteration"] == pytest.approx((200 - 140 - 20) / 200)


def recorder(end_s, **counts):
    built = Recorder()
    built.totals, built.end_ps = Totals(**counts), end_s * PS
    return built


def test_window_counts_only_its_interval():
    whole = recorder(
        10,
        iterations=50,
        per_iteration=Measures(running=500, live=5000),
        over_time=Measures(running=90 * PS),
    )
    early = Totals(
        iterations=10,
        per_iteration=Measures(running=20, live=1000),
        over_time=Measures(running=2 * PS),
    )
    late = Totals(
        iterations=30,
        per_iteration=Measures(running=140, live=3000),
        over_time=Measures(running=18 * PS),
    )
    whole.snapshots = {PS: Snapshot(2 * PS, early), 5 * PS: Snapshot(6 * PS, late)}
    summary = summarize(whole, num_slots=1000, window_ps=(PS, 5 * PS))
    assert summary["batch"] == {"mean_per_iteration": 120 / 20, "mean_over_time": 16 / 4}
    assert summary["memory"]["token_states"]["per_iteration"] == 2000 / (20 * 1000)


def test_whole_run_is_counted_without_a_window():
    counts = {
        "arrived": 9,
        "finished": 8,
        "rejected": 1,
        "generated": 400,
        "swaps": 3,
        "recomputes": 5,
    }
    summary = summarize(recorder(4, **counts), num_slots=10)
    assert summary["throughput"] == {"requests_per_s": 2.0, "output_tokens_per_s": 100.0}
    assert summary["preemptions"] == {"swap": 3, "recompute": 5}
    assert summary["requests"] == {"arrived": 9, "finished": 8, "rejected": 1}


# Of the first two requests of ROWS; the other ones have none
LONGEST = np.array([round(0.3 * PS), round(0.25 * PS)])
GAPS = TokenGaps(GapParts([single_gaps(LONGEST, np.ones(2, int))]), np.arange(2), LONGEST)
ROWS = [  # seconds of arrival, first token, finish; output tokens
    (0, 1.0, 2.0, 11),  # TTFT 1.0, TPOT 0.1
    (0, 0.5, 2.5, 11),  # TTFT 0.5, TPOT 0.2
    (1, 3.0, 3.0, 1),  # TTFT 2.0, no TPOT
]


@pytest.fixture
def log():
    served = [(*(round(time * PS) for time in times), output_len) for *times, output_len in ROWS]
    return log_of(*served, (2 * PS, -1, -1, 5))  # the last one is rejected


@pytest.mark.parametrize(
    ("slo", "inside"),
    [
        (Slo(ttft_s=1.0), [True, True, False, False]),
        (Slo(tpot_s=0.1), [True, False, True, False]),
        (Slo(0.5, 0.2), [False, True, False, False]),
        (Slo(9, 9), [True, True, True, False]),
        (Slo(itl_s=0.25), [False, True, True, False]),
        (Slo(e2e_s=2.0), [True, False, True, False]),
        (Slo(ttft_s=1.0, itl_s=0.3, e2e_s=2.4), [True, False, False, False]),
    ],
)
def test_request_must_meet_every_objective(log, slo, inside):
    assert kept(log, slo, GAPS).tolist() == inside


def test_the_longest_gap_of_each_request_that_is_answered_counts_once(log):
    gaps = GAPS._replace(request_ids=np.array([0, 1, 3]), longest_ps=np.append(LONGEST, 2 * PS))
    assert longest_gaps(log, gaps).tolist() == [0.3, 0.25]


def test_goodput_counts_finished_requests_over_simulated_time(log):
    measured = goodput(log, Slo(ttft_s=1.0), 4.0, GAPS)
    assert measured == {
        "ttft_s": 1.0,
        "tpot_s": None,
        "itl_s": None,
        "e2e_s": None,
        "share_inside": 0.5,
        "goodput_requests_per_s": 0.5,
    }


def test_objective_is_met_exactly_at_the_limit():
    rows = log_of((0, 3 * 10**11, 3 * 10**11 + 7 * 10**10, 8))
    assert kept(rows, Slo(0.3, 0.01), GAPS).tolist() == [True]
    assert kept(rows, Slo(np.nextafter(0.3, 0), None), GAPS).tolist() == [False]


def test_filling_is_what_remains_of_a_request_in_service():
    """Latencies of 1 and 3 s: a request in service is three times as often the longer one."""
    rows = log_of((0, 5 * 10**11, PS, 8), (0, 5 * 10**11, 3 * PS, 8), (0, -1, -1, 8))
    assert filling_s(rows) == pytest.approx(0.25 * 0.5 + 0.75 * 1.5)
    assert filling_s(log_of((0, -1, -1, 8))) is None


def test_an_overload_is_judged_by_the_second_half_of_the_arrivals():
    """Twenty arrive after 20 s; of these, and in time, five have their first token: 3 * sqrt(20) is
    13.4.
    """
    arrivals, firsts = (
        np.arange(1.0, 41),
        np.array([20.0] * 9 + [21, 22, 30, 39, 40] + [40.1] * 20 + [np.nan] * 6),
    )
    assert overload(arrivals, firsts) == {
        "served_requests_per_s": 0.25,
        "offered_requests_per_s": 1.0,
    }
    assert overload(arrivals, np.where(firsts == 20, 31, firsts)) is None


def test_speed_of_a_user_counts_tokens_behind_the_first(log):
    speeds = user_speeds(log)  # 10 tokens in 1 s and in 2 s
    assert [speeds["mean"], speeds["p50"], speeds["p10"]] == pytest.approx([7.5, 7.5, 5.5])


def test_an_output_of_one_token_has_no_speed_and_no_tpot_however_long_its_batch_is():
    rows = log_of((0, PS, 3 * PS, 1), (0, PS, 3 * PS, 9))
    assert user_speeds(rows)["mean"] == 4.0
    assert kept(rows, Slo(tpot_s=0.2), GAPS).tolist() == [True, False]


@pytest.mark.parametrize("largest", [9, 1 << 61])
def test_a_mean_of_gaps_is_exact_where_64_bits_do_not_hold_their_sum(largest):
    runs = GapParts([single_gaps(np.array([1, largest, largest]), np.array([3, 5, 2]))])
    assert runs.sum_ps() == 3 + 7 * largest
    assert spread_of_gaps(runs)["mean"] == (3 + 7 * largest) / 10 / PS
