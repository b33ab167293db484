"""Rates in the second half of the arrivals, worked out by hand."""

import numpy as np
import pandas as pd
import pytest

import testbed
from testbed.core.request import PS
from testbed.engine.packed_rows import PackedRows
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.while_arriving import (
    COMPLETED,
    GOODPUT,
    TTFT_P50,
    TTFT_P99,
    is_filling,
    while_arriving,
)

TIMES = ("arrival_ps", "first_token_ps", "finish_ps")
NAMES = ("request_id", *TIMES, "prompt_len", "output_len", "num_seqs")
ROWS = [  # seconds of arrival and finish; prompt, output and found tokens
    (0, 3, 100, 10, 0),
    (2, 6, 100, 20, 50),
    (5, 9, 100, 30, 60),
    (6, -1, 100, 99, -1),  # rejected
    (8, 8, 100, 40, 100),
    (8, 20, 100, 50, 0),
    (7, -1, 100, 99, 20),  # cancelled after its prompt was looked up
]


def log(rows=ROWS):
    """Each first token comes after half of a request's time."""
    packed = PackedRows(*NAMES, "hit_tokens")
    for number, (arrival, finish, prompt, output, found) in enumerate(rows):
        first_ps = (arrival + finish) * PS // 2
        packed.append((number, arrival * PS, first_ps, finish * PS, prompt, output, 1, found))
    return packed


def test_rates_are_those_of_the_second_half_of_the_arrivals():
    """From 4 to 8 s five arrive, and those of 20 and of 40 tokens complete; the drain to 20 s does
    not count.
    """
    rates = while_arriving(log(), 7, np.array([True, False, True, False, True, True, False]))
    assert (rates["from_s"], rates["to_s"]) == (4, 8)
    assert (rates["arrived_requests_per_s"], rates[COMPLETED]) == (1.25, 0.5)
    assert rates["completed_output_tokens_per_s"] == 60 / 4
    assert rates[GOODPUT] == 0.25
    assert rates["prompt_found"] == 180 / 400  # of those that are admitted
    assert rates["share_longer_than_first_half"] == 1 / 5


def test_waits_are_those_of_the_arrivals_of_the_second_half_that_are_answered():
    """2, 0 and 6 s: that of the first half and the rejected request's do not count."""
    rates = while_arriving(log(), 7)
    assert rates[TTFT_P50] == 2
    assert rates[TTFT_P99] == pytest.approx(2 + 4 * 0.98)
    nothing = while_arriving(log([(1, 2, 9, 9, 0), (2, -1, 9, 9, 0)]), 2)
    assert nothing[TTFT_P50] is nothing[TTFT_P99] is None


def test_unknown_contents_and_objectives_have_no_rate():
    rates = while_arriving(log([(1, 2, 9, 9, -1), (2, 2, 9, 9, -1)]), 2)
    assert rates["prompt_found"] is rates[GOODPUT] is None


@pytest.mark.parametrize(("rows", "num_arrived"), [([], 0), ([(0, 5, 1, 1, 0)] * 2, 2), (ROWS, 8)])
def test_requests_at_once_and_a_stopped_run_have_no_second_half(rows, num_arrived):
    assert while_arriving(log(rows), num_arrived) is None


def test_the_time_of_sessions_ends_as_fewer_are_open():
    """Two of three start at once; the third starts at 6 s, as one has ended, and lasts until 20."""
    sessions = np.array([0, 1, 0, 2, 1, 2])
    rows = [(0, 2, 9, 9, 0), (0, 3, 9, 9, 0), (4, 6, 9, 9, 0), (6, 8, 9, 9, 0), (9, 10, 9, 9, 0)]
    rates = while_arriving(log([*rows, (15, 20, 9, 9, 0)]), 6, sessions=sessions)
    assert (rates["from_s"], rates["to_s"]) == (3, 6)
    at_once = while_arriving(log(rows[:3]), 3, sessions=np.array([0, 1, 0]))
    assert at_once["to_s"] == 3  # all have started, and one ends


def test_sessions_whose_requests_wait_for_no_answer_do_not_end_the_time():
    """The one that starts last starts at 1 s; the first one ends as the server is done."""
    table = {"prompt_len": [900] * 4, "output_len": [900] * 4, "session": [0, 1, 1, 0]}
    table["arrival_s"] = [0, 1, 2, 4]
    for options in ({}, {"replicas": 2, "router": "round_robin"}):
        options |= {"model": "llama-3-8b", "gpu": "l40s", "trace": pd.DataFrame(table)}
        assert testbed.simulate(**options).summary[WHILE_ARRIVING]["to_s"] == 4


def test_a_server_that_keeps_up_completes_what_arrives_and_a_fleet_too():
    lengths = {"trace": "random", "trace.input_len": 500, "trace.output_len": 300}
    for options in ({}, {"replicas": 2, "router": "round_robin"}):
        options |= {"model": "llama-3-8b", "gpu": "l40s", "rate": 4, "duration_s": 40, **lengths}
        summary = testbed.simulate(**options).summary
        rates = summary[WHILE_ARRIVING]
        assert rates[COMPLETED] == pytest.approx(rates["arrived_requests_per_s"], rel=0.1)
        assert summary["throughput"]["requests_per_s"] < 0.9 * rates[COMPLETED]
        assert not is_filling(rates)
    short = testbed.simulate(**options | {"duration_s": 10}).summary
    assert is_filling(short[WHILE_ARRIVING])
