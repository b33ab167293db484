"""Latencies, percentiles and shares of a handful of requests, worked out by hand."""

import numpy as np
import pytest

from testbed.core.request import PS
from testbed.metrics import free_shares, latencies, memory_shares, spread, summarize
from testbed.sim.recorder import Mark, Recorder
from testbed.sim.totals import Measures, Totals

NAMES = ("arrival_ps", "first_token_ps", "finish_ps", "output_len")


class Log:
    """Stands for a recorder's requests: what `latencies` asks of them."""

    def __init__(self, *requests):
        self._columns = {
            name: np.array(column) for name, column in zip(NAMES, zip(*requests, strict=True), strict=True)
        }

    def columns(self):
        return self._columns


def test_latencies_of_three_requests_one_of_them_unserved():
    served, one_token, unserved = (2 * PS, 3 * PS, 7 * PS, 5), (4 * PS, 6 * PS, 6 * PS, 1), (5 * PS, -1, -1, 9)
    found = latencies(Log(served, one_token, unserved, (0, PS, 2 * PS, 2)))
    assert found["normalized_latency_s_per_token"].tolist() == [1.0, 2.0, 1.0]
    assert found["ttft_s"].tolist() == [1.0, 2.0, 1.0]
    assert found["tpot_s"].tolist() == [1.0, 1.0]  # (7 - 3) / 4 and (2 - 1) / 1; one token has no gap


def test_percentiles_are_those_of_their_names():
    found = spread(np.arange(101.0))
    assert {name: found[name] for name in ("mean", "p50", "p90", "p99")} == {
        "mean": 50,
        "p50": 50,
        "p90": 90,
        "p99": 99,
    }


def totals(**sums):
    return Totals(iterations=2, per_iteration=Measures(**sums), over_time=Measures(**sums))


def test_the_pool_is_split_as_section_3_1_says():
    shares = memory_shares(totals(live=80, reserved=40, internal=20), num_slots=100, elapsed_ps=4)
    assert {kind: share["per_iteration"] for kind, share in shares.items()} == {
        "token_states": 0.4, "reserved": 0.2, "internal": 0.1, "external": pytest.approx(0.3),
    }  # fmt: skip
    assert shares["token_states"]["over_time"] == 0.2


def test_what_one_sequence_could_get_is_neither_held_nor_rounded_nor_scattered():
    free = free_shares(totals(live=80, reserved=40, internal=20, rounding=6, scattered=14), 100, 4)
    assert free["largest_free"]["per_iteration"] == pytest.approx((200 - 140 - 20) / 200)


def recorder(end_s, **counts):
    made = Recorder()
    made.totals, made.end_ps = Totals(**counts), end_s * PS
    return made


def test_a_window_counts_what_was_inside_it_alone():
    whole = recorder(
        10, iterations=50, per_iteration=Measures(running=500, live=5000), over_time=Measures(running=90 * PS)
    )
    early = Totals(iterations=10, per_iteration=Measures(running=20, live=1000), over_time=Measures(running=2 * PS))
    late = Totals(iterations=30, per_iteration=Measures(running=140, live=3000), over_time=Measures(running=18 * PS))
    whole.marks = {PS: Mark(2 * PS, early), 5 * PS: Mark(6 * PS, late)}
    summary = summarize(whole, num_slots=1000, window_ps=(PS, 5 * PS))
    assert summary["batch"] == {"mean_per_iteration": 120 / 20, "mean_over_time": 16 / 4}
    assert summary["memory"]["token_states"]["per_iteration"] == 2000 / (20 * 1000)


def test_what_sharing_saved_in_a_window_leaves_out_what_it_saved_before():
    """Ten slots are held; before the window 90 more are used twice, and in its 20 iterations 100: 5 each time."""
    whole = recorder(10, iterations=50)
    whole.marks = {
        PS: Mark(PS, Totals(iterations=10, sharing={10: (90, 9 * PS), 30: (30, 3 * PS)})),
        5 * PS: Mark(5 * PS, Totals(iterations=30, busy_ps=4 * PS, sharing={10: (190, 49 * PS), 30: (30, 3 * PS)})),
    }
    saved = summarize(whole, num_slots=1000, window_ps=(PS, 5 * PS))["memory_saving"]
    assert saved == pytest.approx({"per_iteration": 1 - 1 / 1.5, "over_time": 1 - 1 / 2})


def test_a_run_is_counted_whole_where_no_window_is_asked_for():
    counts = {"arrived": 9, "finished": 8, "rejected": 1, "generated": 400, "swaps": 3, "recomputes": 5}
    summary = summarize(recorder(4, **counts), num_slots=10)
    assert summary["throughput"] == {"requests_per_s": 2.0, "output_tokens_per_s": 100.0}
    assert summary["preemptions"] == {"swap": 3, "recompute": 5}
    assert summary["requests"] == {"arrived": 9, "finished": 8, "rejected": 1}
