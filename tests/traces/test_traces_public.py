"""Public formats on files of ten lines of our own, and real files if they are at hand (in
TESTBED_SHARED).
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from drawings import numbers
from refusals import refuses
from trace_files import pairs, put

from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import prompts_of, replay
from testbed.traces.azure import AzureCsv
from testbed.traces.burstgpt import BurstGptCsv
from testbed.traces.chat import ChatFitted
from testbed.traces.chat_histories import ChatHistories
from testbed.traces.csv_lengths import PUBLISHED, CsvLengths, rows_sha256
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.ragpulse import RagPulseJsonl
from testbed.traces.servegen import ServeGenFolder, Window, arrivals
from testbed.traces.synthetic import Fitted
from testbed.traces.wmt import WmtCsv

BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
185,ChatGPT,0,0,0,Conversation log
185.5,GPT-4,1360,647,2007,API log
214,ChatGPT,185,215,400,API log
233,GPT-4,586,0,586,Conversation log
261,ChatGPT,37,1656,1693,Conversation log
267,ChatGPT,54,1,55,API log
"""


def test_burstgpt_omits_failures_and_keeps_times(tmp_path):
    rows = BurstGptCsv(put(tmp_path, "b.csv", BURST)).rows(None, 0)
    assert pairs(rows) == [
        (472, 18),
        (1087, 230),
        (417, 276),
        (1360, 647),
        (185, 215),
        (37, 1656),
        (54, 1),
    ]
    assert rows.arrival_s.tolist() == [0, 40, 113, 180.5, 209, 256, 262]


def rag(tmp_path, *lines):
    """A trace whose parts 1, 2, 3, 4 and 5 have 16, 32, 8, 20 and 0 tokens."""
    for name, key, part, size in (
        ("1_sys_prompt", "hash_id", 1, 16),
        ("2_passages", "passage_id", 2, 32),
        ("3_history", "hash_id", 3, 8),
        ("4_user_input", "hash_id", 4, 20),
        ("5_web_search", "hash_id", 5, 0),
    ):
        put(tmp_path, f"{name}.jsonl", json.dumps({key: part, "token_length": size}))
    return RagPulseJsonl(put(tmp_path, "0_trace.jsonl", "\n".join(map(json.dumps, lines))))


def rag_request(time, length, **parts):
    return {
        "timestamp": str(time),
        "input_length": length,
        "output_length": 9,
        "hash_ids": parts,
        "session_id": "s",
    }


def test_ragpulse_shares_ids_of_equal_parts_in_equal_positions(tmp_path):
    every = {
        "sys_prompt": [1],
        "passages_ids": [2],
        "history": [3],
        "web_search": [5],
        "user_input": [4],
    }
    rows = rag(
        tmp_path,
        rag_request(27, 76, **every),
        rag_request(30, 80, **every),
        rag_request(31, 60, sys_prompt=[1], history=[3], passages_ids=[]),
        rag_request(32, 48, passages_ids=[2], sys_prompt=[1]),
    ).rows(None, 0)
    assert rows.arrival_s.tolist() == [0, 3, 4, 5]
    # Values that no part has are the row's own; parts in another order, or further on, are others.
    assert list(rows.prompt_ids) == [(0, 1, 2, 3, 4), (0, 1, 2, 3, 5), (0, 6, 7, 8), (0, 1, 2)]
    assert (rows.tokens_per_id, pairs(rows)) == (16, [(76, 9), (80, 9), (60, 9), (48, 9)])


def test_ragpulse_takes_ids_of_any_size(tmp_path):
    rag(tmp_path)
    put(tmp_path, "2_passages.jsonl", json.dumps({"passage_id": 2**63 + 1, "token_length": 32}))
    line = rag_request(1, 32, passages_ids=[2**63 + 1])
    first, second = (
        RagPulseJsonl(put(tmp_path, "t.jsonl", f"{json.dumps(line)}\n" * 2))
        .rows(None, 0)
        .prompt_ids
    )
    assert len(first) == 2
    assert first == second


TRACE = "0,2.0,1.0,Gamma,0.5,1.0\n600,0,0,,0,0\n1200,1.0,2.0,Weibull,0.5,3.4\n"
DATASET = {
    "0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"},
    "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{0: 0.5, 4: 0.5}"},
}


def servegen_folder(tmp_path, trace=TRACE, dataset=DATASET):
    put(tmp_path, "chunk-3-trace.csv", trace)
    put(tmp_path, "chunk-3-dataset.json", json.dumps(dataset))
    return str(tmp_path)


def test_servegen_reads_limits_and_repeats_the_length_of_the_last_window(
    tmp_path,
):
    lengths = {"input_tokens": {"2147483647": 1.0}, "output_tokens": {"0": 0.0, "7": 3.0}}
    for shape in (0.01, 1e4):
        trace = f"0,100000,1,Gamma,{shape},1\n0.01,100000,1,Weibull,1e4,1\n0.02,0,0,,0,0\n"
        rows = ServeGenFolder(
            servegen_folder(tmp_path, trace, {"0": lengths}), duration_s=0.03
        ).rows(None, 0)
        assert set(pairs(rows)) == {(2**31 - 1, 7)}
        assert (rows.arrival_s < 0.03).all()
    for trace, last_s in (("0,9,1,Gamma,1,1\n50,9,1,Gamma,1,1\n", 100), ("0,9,1,Gamma,1,1\n", 600)):
        times = (
            ServeGenFolder(servegen_folder(tmp_path, trace, {"0": lengths})).rows(None, 0).arrival_s
        )
        assert last_s - 2 < times[-1] < last_s
    for trace in (
        "0,100001,1,Gamma,1,1\n",
        "0,1,1,Gamma,10001,1\n",
        "2e15,1,1,Gamma,1,1\n",
        "-1,1,1,Gamma,1,1\n",
        "0,1,1,Gamma,0.0009,1\n",
    ):
        refuses(
            "line 1: Gamma gaps from",
            ServeGenFolder(servegen_folder(tmp_path, trace)).rows,
            None,
            0,
        )
    refuses(
        "line 1: Weibull gaps from",
        ServeGenFolder(servegen_folder(tmp_path, "0,1,1,Weibull,0.09,1\n")).rows,
        None,
        0,
    )
    burst = ServeGenFolder(
        servegen_folder(tmp_path, "0,0.37,12,Gamma,0.0067,400\n", {"0": lengths})
    )
    assert len(burst.rows(None, 0))  # the most uneven client of m-mid
    latest = ServeGenFolder(servegen_folder(tmp_path, "1e15,1,1,Gamma,1,1\n"))
    refuses("no client sends from 0 s to 3600 s", latest.rows, None, 0)


@pytest.mark.parametrize("pattern", ["Gamma", "Weibull"])
def test_servegen_gaps_have_the_mean_of_the_rate(pattern):
    times = arrivals(
        Window(start_s=100.0, end_s=100_100.0, rate=0.5, pattern=pattern, shape=0.8),
        np.random.default_rng(1),
    )
    assert len(times) == pytest.approx(50_000, rel=0.02)
    assert times.min() >= 100


DRAWN = {
    "sharegpt": lambda folder: Fitted("sharegpt").rows(12, 3),
    "alpaca below 60": lambda folder: Fitted("alpaca", registered_prefix=9).rows(12, 3, 60),
    "wmt": lambda folder: Fitted("wmt").rows(12, 3),
    "chat": lambda folder: ChatFitted(answer_scale=0.5).rows(14, 1),
    "histories": lambda folder: ChatHistories(max_prompt=99).rows(14, 2),
    "servegen": lambda folder: ServeGenFolder(
        servegen_folder(folder), start_s=580, duration_s=632
    ).rows(None, 1, 34),
    "from an end": lambda folder: ServeGenFolder(
        servegen_folder(folder), start_s=600, duration_s=612
    ).rows(None, 1),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_seed_draws_the_same_rows_everywhere(name, tmp_path, snapshot):
    """The one snapshot of rows: lengths, times, ids and sessions."""
    rows = DRAWN[name](tmp_path)
    columns = [rows.prompt_len, rows.output_len, rows.arrival_s, rows.prompt_ids, rows.session]
    lines = zip(*(column for column in columns if column is not None), strict=True)
    head = f"{name}: {rows.tokens_per_id} tokens an id, a prefix of {rows.registered_prefix}"
    assert "\n".join([head, *map(numbers, lines)]) == snapshot


def test_servegen_requires_replayed_arrivals(tmp_path):
    refuses("arrivals=replay", lambda: ServeGenFolder(str(tmp_path)).rows(3, 0))


DATA = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
SHAREGPT = "sharegpt_sosp23/sharegpt_opt_lengths.csv.gz"
WMT = "wmt_newstest/wmt_ende_lengths.csv.gz"


def shared(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the shared data file {name} (set TESTBED_SHARED to its folder)")
    return str(path)


def test_sharegpt_rows_are_the_published_ones():
    assert rows_sha256(CsvLengths(shared(SHAREGPT)).read()) in PUBLISHED
    rows = CsvLengths(shared(SHAREGPT)).rows(None, 0, max_len=2049)
    assert len(rows) == 79_731
    assert rows.prompt_len.mean() == pytest.approx(161.31, abs=0.005)
    assert rows.output_len.mean() == pytest.approx(337.99, abs=0.005)


def test_mooncake_ideal_hit_rate_matches_the_paper():
    rows = MooncakeJsonl(shared("mooncake/conversation_trace.jsonl.gz")).rows(None, 0)
    blocks = sum(map(len, rows.prompt_ids))
    distinct = len(set().union(*rows.prompt_ids))
    assert (len(rows), blocks) == (12_031, 288_500)
    assert 1 - distinct / blocks == pytest.approx(0.366, abs=0.0005)
    assert replay(list(prompts_of(rows, 512)), None, Lru()).hit_rate == pytest.approx(
        0.366, abs=0.001
    )
    assert rows.arrival_s[-1] == pytest.approx(3536.999)


def test_azure_conversation_trace_matches_its_statistics():
    rows = AzureCsv(shared("azure_2023/azure_llm_conv.csv.gz")).rows(None, 0)
    assert len(rows) == 19_366
    assert rows.prompt_len.mean() == pytest.approx(1154.7, abs=0.05)
    assert rows.arrival_s[-1] == pytest.approx(3502, abs=1)


def test_wmt_prompt_lengths_match_the_measured_ones():
    rows = WmtCsv(shared(WMT), registered_prefix=80).rows(None, 0)
    assert len(rows) == 2999
    assert rows.prompt_len.mean() == pytest.approx(108.55, rel=0.005)
    assert rows.output_len.mean() == pytest.approx(36.29, abs=0.005)
