"""Logs of benchmark clients: vllm bench serve and GuideLLM as they write them, and what is wrong with others."""

import json

import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.traces.vllm_log import VllmLog

VLLM = {
    "input_lens": [7, 9, 5], "output_lens": [3, 1, 0], "ttfts": [0.25, 0.5, 0.0], "itls": [[0.25, 0.5], [], []],
    "start_times": [10.5, 10.0, 11.0], "errors": ["", "", "refused"],
}  # fmt: skip
NEW = {"request_start": 20.5, "first_token_iteration": 20.75, "last_token_iteration": 21.5}
OLD = {"start_time": 20.0, "first_token_time": 20.5, "last_token_time": 20.5}
GUIDELLM = [
    {"prompt_tokens": 7, "output_tokens": 3, "info": {"timings": NEW}},
    {"prompt_tokens": 9, "output_tokens": 1, **OLD},
]


def write(folder, whole):
    path = folder / "log.json"
    path.write_text(json.dumps(whole))
    return str(path)


@pytest.mark.parametrize(
    "whole", [VLLM, {"benchmarks": [{"requests": {"successful": GUIDELLM, "errored": [{}]}}]}], ids=["vllm", "guidellm"]
)
def test_both_clients_say_the_same(tmp_path, whole):
    log = VllmLog(write(tmp_path, whole))
    assert log.read().prompt_len.tolist() == [9, 7]  # in order of arrival
    assert log.read().output_len.tolist() == [1, 3]
    assert [column.tolist() for column in log.times[:3]] == [[0, 0.5], [0.5, 0.75], [0.5, 1.5]]
    assert not log.is_of_engine
    assert log.remarks == ["1 of 3 requests failed: left out, as if they took no time"]


def test_lengths_that_were_tokenized_again_are_the_streams(tmp_path):
    log = VllmLog(write(tmp_path, {**VLLM, "output_lens": [2, 1, 0]}))
    assert log.read().output_len.tolist() == [1, 3]
    assert "output_lens were tokenized again: 2 tokens on average" in log.remarks[0]


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ([], "neither GuideLLM's benchmarks.json nor"),
        ({"mean_ttft_ms": 3}, "run vllm bench serve with --save-result --save-detailed"),
        ({**VLLM, "start_times": None}, "no start_times; run a newer"),
        ({**VLLM, "ttfts": [0.5]}, "not of the same length"),
        ({**VLLM, "ttfts": [-1.0, 0.5, 0.0]}, "request 1: its times are not in order"),
        ({**VLLM, "errors": ["x", "x", "x"]}, "no request was served"),
        ({"benchmarks": [{}, {}]}, "contains 2 benchmarks .give a file of one"),
        ({"benchmarks": [{"requests": {"successful": [{"prompt_tokens": 7}]}}]}, "request 1: output=None"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, whole, message):
    refuses(message, lambda: VllmLog(write(tmp_path, whole)).read())


def test_a_workload_file_adds_hashes_to_a_csv(tmp_path):
    log, workload = tmp_path / "log.csv", tmp_path / "w.jsonl"
    log.write_text("input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n33,2,1,2,3\n16,2,0,2,3\n")
    workload.write_text('{"hash_ids": [1, 2, 3], "tokens_per_id": 16}\n{"hash_ids": [1], "tokens_per_id": 16}\n')
    rows = VllmLog(str(log), str(workload)).read()
    assert (rows.prompt_ids, rows.tokens_per_id) == ([(1,), (1, 2, 3)], 16)
    for wrong in ('{"hash_ids": [1, 2], "tokens_per_id": 16}', '{"input_tok_ids": [5]}'):
        workload.write_text(f"{wrong}\n" * 2)
        with pytest.raises(InputError, match="line 1: the log has 33 token ids, or their hash_ids here"):
            VllmLog(str(log), str(workload)).read()
