"""`trace=` takes a list of requests or a data frame: their order, their values, and what is wrong
with them.
"""

import numpy as np
import pandas as pd
import pytest
from refusals import check_refusal

import testbed as front
from testbed.core.request import PS, Request

ONE = Request(1, arrival_ps=PS, prompt_len=8, output_len=4)
WRONG = [
    ({"request_id": -1}, ("request -1", "request_id", "-1", "at least 0")),
    ({"arrival_ps": -1}, ("request 1", "arrival_ps", "at least 0")),
    ({"arrival_ps": 9_000_000 * PS + 1}, ("request 1", "9,000,000 s")),
    ({"prompt_len": 0}, ("request 1", "prompt_len", "at least 1")),
    ({"prompt_len": 1 << 63}, ("request 1", "prompt_len", "64 bits")),
    ({"prompt_len": 2.5}, ("request 1", "prompt_len", "2.5", "whole number")),
    ({"output_len": 0}, ("request 1", "output_len", "at least 1")),
    ({"num_seqs": 0}, ("request 1", "num_seqs", "at least 1")),
    ({"beam": 1}, ("request 1", "beam", "True or False")),
    ({"priority": "x"}, ("request 1", "priority", "'x'", "whole number")),
    ({"session": 1.5}, ("request 1", "session", "1.5", "whole number")),
    ({"registered_prefix": -1}, ("request 1", "registered_prefix", "at least 0")),
    ({"registered_prefix": 9}, ("request 1", "9 tokens", "longer than its prompt")),
    ({"tokens_per_id": 0}, ("request 1", "tokens_per_id", "at least 1")),
    ({"prompt_ids": (1, 2.5)}, ("request 1", "prompt_ids", "2.5", "whole number")),
    ({"prompt_ids": (1,) * 7}, ("request 1", "7 prompt_ids", "8 tokens")),
    ({"prompt_ids": (1, 2, 3), "tokens_per_id": 2}, ("3 prompt_ids of 2 tokens", "8 tokens")),
]


@pytest.mark.parametrize(("changed", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_refused_with_its_request(changed, words):
    check_refusal(("trace", *words), front.simulate, trace=[ONE._replace(**changed)])


@pytest.mark.parametrize(
    "changed",
    [
        {"request_id": 0},
        {"registered_prefix": 8},
        {"prompt_ids": (-5,) * 8},
        {"prompt_ids": np.arange(4), "tokens_per_id": 2},
        {"priority": -3, "session": 0},
        {"num_seqs": np.int64(2), "beam": np.True_},
    ],
    ids=str,
)
def test_extreme_values_of_fields_are_served(changed):
    result = front.simulate(trace=[ONE._replace(**changed)])
    assert result.summary["requests"] == {"arrived": 1, "finished": 1, "rejected": 0}


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        pytest.param([ONE, 5], ("Request", "not int"), id="a number"),
        pytest.param([ONE, ONE], ("the same request_id",), id="one id twice"),
        pytest.param(
            [
                ONE._replace(registered_prefix=3),
                ONE._replace(request_id=3, registered_prefix=4),
            ],
            ("more than one registered prefix", "[3, 4]"),
            id="two prefixes",
        ),
        pytest.param(
            [
                ONE._replace(prompt_ids=(1,) * 8),
                ONE._replace(request_id=2, prompt_ids=(1,) * 4, tokens_per_id=2),
            ],
            ("more than one tokens_per_id", "[1, 2]"),
            id="two sizes of ids",
        ),
    ],
)
def test_requests_that_do_not_go_together_are_refused(requests, words):
    check_refusal(("trace", *words), front.simulate, trace=requests)


@pytest.mark.parametrize(
    ("words", "options", "key"),
    [
        (("arrivals=poisson",), {}, "arrivals"),
        (("workload.beam=true",), {}, "workload.beam"),
        ((), {"rate": 1}, "rate"),
        ((), {"num_seqs": 2}, "num_seqs"),
    ],
)
def test_options_whose_values_the_requests_have_are_refused(words, options, key):
    check_refusal(
        (key, "does not apply to a list of requests", "remove it"),
        front.simulate,
        *words,
        trace=[ONE],
        **options,
    )


def test_requests_are_served_in_the_order_of_their_arrivals():
    late = Request(
        4,
        arrival_ps=10**12,
        prompt_len=50,
        output_len=5,
        num_seqs=2,
        beam=True,
        prompt_ids=tuple(range(50)),
    )
    early = Request(1, arrival_ps=0, prompt_len=5, output_len=5, priority=3, session=2)
    table = front.simulate(trace=[late, early]).requests
    assert table["request_id"].tolist() == [1, 4]
    assert table["arrival_s"].tolist() == [0, 1]
    assert table["prompt_len"].tolist() == [5, 50]
    assert table["num_seqs"].tolist() == [1, 2]


FRAME = pd.DataFrame(
    {
        "prompt_tokens": [5, 9],
        "output_tokens": [4, 4],
        "arrival_s": [0, 1.5],
        "session": ["b", "a"],
        "n": [1, 2],
        "beam": [0, 1],
        "priority": [1, 2],
    }
)


def test_times_of_a_frame_are_replayed():
    result = front.simulate(trace=FRAME, model="llama-3-8b", gpu="h200")
    assert result.requests["arrival_s"].tolist() == [0, 1.5]
    assert result.requests["prompt_len"].tolist() == [5, 9]
    assert result.requests["num_seqs"].tolist() == [1, 2]
    assert result.requests["priority"].tolist() == [1, 2]
    assert result.sessions["requests"].tolist() == [1, 1]
    assert result.sessions["output_tokens"].tolist() == [4, 8]


def test_a_rejected_request_brings_its_session_no_output_tokens():
    """The last request is longer than the model takes."""
    frame = FRAME.assign(output_tokens=[4, 10**6])
    result = front.simulate(trace=frame, model="llama-3-8b", gpu="h200")
    assert result.summary["requests"]["rejected"] == 1
    assert result.sessions["output_tokens"].tolist() == [4, 0]


@pytest.mark.parametrize("blank", ["", " ", None, np.nan, pd.NA])
def test_rows_without_a_session_have_one_each(blank):
    frame = pd.DataFrame(
        {
            "input_tokens": [5] * 4,
            "output_tokens": [4] * 4,
            "session": pd.Series([blank, "a", blank, "a"], dtype=object),
        }
    )
    result = front.simulate(trace=frame, arrivals="sessions", model="llama-3-8b", gpu="h200")
    assert sorted(result.sessions["requests"]) == [1, 1, 2]


def test_rows_of_a_frame_are_drawn_where_a_rate_is_given():
    table = front.simulate(trace=FRAME, rate=1, duration_s=3, seed=np.int64(2)).requests
    assert len(table) == 3
    assert set(zip(table["prompt_len"], table["num_seqs"], strict=True)) <= {(5, 1), (9, 2)}
    assert table["arrival_s"].is_monotonic_increasing


def test_costs_of_one_sequence_a_request_say_so_for_samples_among_ones_own_requests():
    costs = {"model": "llama-3-8b", "server": "h200", "cost": "profile"}
    costs["cost.path"] = "gpu-engine/h200-llama-3-8b-tp1"
    notes = [
        front.simulate(trace=requests, **costs).summary["run"]["samples_note"]
        for requests in ([ONE], [ONE, ONE._replace(request_id=2, num_seqs=2)])
    ]
    assert [note is not None for note in notes] == [False, True]
