"""Objectives count as they say: per request, the rejected ones outside."""

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.sim.rows import PackedRows
from testbed.slo import Slo, checked_slo, goodput, kept

NAMES = ("arrival_ps", "first_token_ps", "finish_ps", "output_len")
ROWS = [  # seconds of arrival, first token, finish; output tokens
    (0, 1.0, 2.0, 11),  # TTFT 1.0, TPOT 0.1
    (0, 0.5, 2.5, 11),  # TTFT 0.5, TPOT 0.2
    (1, 3.0, 3.0, 1),  # TTFT 2.0, no TPOT
]


@pytest.fixture
def log():
    rows = PackedRows(*NAMES)
    for *times, output_len in ROWS:
        rows.append((*(round(time * PS) for time in times), output_len))
    rows.append((2 * PS, -1, -1, 5))  # rejected
    return rows


@pytest.mark.parametrize(
    ("slo", "inside"),
    [
        (Slo(ttft_s=1.0), [True, True, False, False]),
        (Slo(tpot_s=0.1), [True, False, True, False]),
        (Slo(0.5, 0.2), [False, True, False, False]),
        (Slo(9, 9), [True, True, True, False]),
    ],
)
def test_a_request_keeps_every_objective_or_is_outside(log, slo, inside):
    assert kept(log, slo).tolist() == inside


def test_shares_are_of_all_that_ended_and_rates_of_simulated_time(log):
    found = goodput(log, Slo(ttft_s=1.0), simulated_s=4.0)
    assert found == {"ttft_s": 1.0, "tpot_s": None, "share_inside": 0.5, "goodput_requests_per_s": 0.5}


def test_without_objectives_nothing_is_claimed(log):
    assert set(goodput(log, Slo(), 4.0).values()) == {None}


def test_without_requests_nothing_is_claimed():
    found = goodput(PackedRows(*NAMES), Slo(ttft_s=1.0), 0.0)
    assert (found["share_inside"], found["goodput_requests_per_s"]) == (None, None)


@pytest.mark.parametrize("value", [0, -1, True, "1", float("nan"), [1]])
def test_an_objective_is_a_time_above_zero(value):
    with pytest.raises(InputError, match=r"slo\.ttft_s"):
        checked_slo(value, None)


def test_the_columns_decide_exactly_at_the_limit():
    rows = PackedRows(*NAMES)
    rows.append((0, 3 * 10**11, 3 * 10**11 + 7 * 10**10, 8))
    assert kept(rows, Slo(0.3, 0.01)).tolist() == [True]
    assert kept(rows, Slo(np.nextafter(0.3, 0), None)).tolist() == [False]
