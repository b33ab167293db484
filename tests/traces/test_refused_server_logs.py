"""Logs of servers that are refused in one line: the file, the request or line, and what to do."""

import json

import pytest
from trace_files import check_file_is_refused

from testbed.traces.vllm_log import VllmLog

BENCH = {
    "input_lens": [7, 9, 5],
    "output_lens": [3, 1, 0],
    "ttfts": [0.25, 0.5, 0.0],
    "itls": [[0.25, 0.5], [], []],
    "start_times": [10.5, 10.0, 11.0],
    "errors": ["", "", "refused"],
}
STATS = {
    "input_toks": 1,
    "output_toks": 2,
    "queued_ts": 1.0,
    "first_token_ts": 2.0,
    "last_token_ts": 4.0,
}
HEADER = "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n"


def check_log_is_refused(folder, name, text, words):
    check_file_is_refused(folder, {name: text}, words, lambda path: VllmLog(path).rows(None, 0))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param([], ("neither GuideLLM's benchmarks.json nor",), id="a list"),
        pytest.param(
            {"mean_ttft_ms": 3}, ("--save-result --save-detailed",), id="means without requests"
        ),
        pytest.param(
            {**BENCH, "start_times": None}, ("no start_times", "newer"), id="no start times"
        ),
        pytest.param({**BENCH, "ttfts": [0.5]}, ("not of the same length",), id="a short column"),
        pytest.param(
            {**BENCH, "ttfts": [-1.0, 0.5, 0.0]},
            ("request 1", "times are not in order"),
            id="a first token before its request",
        ),
        pytest.param(
            {**BENCH, "ttfts": [None, 0.5, 0.0]}, ("not as vllm bench serve",), id="no first token"
        ),
        pytest.param({**BENCH, "itls": [1, [], []]}, ("not as vllm bench serve",), id="one gap"),
        pytest.param({**BENCH, "errors": [""]}, ("not as vllm bench serve",), id="one error"),
        pytest.param(
            {"benchmarks": [{"requests": {"successful": [None]}}]},
            ("not as GuideLLM",),
            id="no request",
        ),
        pytest.param({**BENCH, "errors": ["x"] * 3}, ("no request was served",), id="all failed"),
        pytest.param(
            {"benchmarks": [{}, {}]}, ("contains 2 benchmarks", "give"), id="two benchmarks"
        ),
        pytest.param({"benchmarks": {}}, ("contains 0 benchmarks",), id="no benchmark"),
        pytest.param(
            {"benchmarks": [{"requests": {"successful": [{"prompt_tokens": 7}]}}]},
            ("request 1", "output=None"),
            id="a request without output",
        ),
    ],
)
def test_results_of_benchmarks_are_refused(tmp_path, log, words):
    check_log_is_refused(tmp_path, "log.json", json.dumps(log), words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[]", ("not a JSON object",), id="a list"),
        pytest.param('{"input_toks": 1', ("not valid JSON",), id="a truncated line"),
        pytest.param(json.dumps({**STATS, "input_toks": 0}), ("input_toks=0",), id="no input"),
        pytest.param(
            json.dumps({**STATS, "first_token_ts": None}), ("first_token_ts=None",), id="no time"
        ),
        pytest.param(
            json.dumps({**STATS, "priority": 1 << 64}), (f"priority={1 << 64}",), id="no class"
        ),
        pytest.param(
            json.dumps({**STATS, "queued_ts": float("-inf")}), ("queued_ts=-inf",), id="infinite"
        ),
        pytest.param(
            json.dumps({**STATS, "queued_ts": 3.0}),
            ("not in order", "queued_ts, first_token_ts, last_token_ts"),
            id="a first token before its request",
        ),
    ],
)
def test_lines_of_request_statistics_are_refused(tmp_path, text, words):
    check_log_is_refused(tmp_path, "a.jsonl", text, ("line 1", *words))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param(
            "9,3,0,0.1,0.2\n9,3,0.5,0.1,0.9\n",
            ("line 3", "first_token_s", "'0.1'", "arrival_s, first_token_s, finish_s"),
            id="a first token before its request",
        ),
        pytest.param(
            "9,3,0,0.9,0.5\n",
            ("line 2", "first_token_s", "'0.9'", "not in order"),
            id="a first token after the last",
        ),
    ],
)
def test_times_out_of_order_are_refused(tmp_path, rows, words):
    check_log_is_refused(tmp_path, "a.csv", HEADER + rows, words)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param(
            ["9,200,0,1,1"], ("request 1 of 1", "last token when", "200"), id="all tokens at once"
        ),
        pytest.param(
            ["9,2,0,1,2", "9,2,3,4,5"] * 2, ("each request is there twice",), id="copied rows"
        ),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path, rows, words):
    check_log_is_refused(tmp_path, "served.csv", HEADER + "\n".join(rows) + "\n", words)


def test_a_token_before_the_end_is_refused(tmp_path):
    path = tmp_path / "served.csv"
    path.write_text(HEADER + "9,1,0,1,2\n9,2,0,1,2\n")
    log = VllmLog(str(path))
    log.read()
    assert log.remarks == ["1 of 2 requests have one token and end later than with it"]
