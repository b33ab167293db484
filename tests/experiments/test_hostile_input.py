"""Hostile and wrong input of every kind is refused in one line, with nothing half-written.

Each table has a reader or command, its input, and what the refusal names: the key, the value, the
way out. The wording of all refusals is in the snapshot of this file, and in no other test.
"""

import gzip
import json
import pickle
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from refusals import check_refusal, check_words
from trace_files import BENCH, put

import testbed as front
from testbed.core.errors import InputError
from testbed.core.request import Request, Rows
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ServerSpec
from testbed.engine.arrivals import Gamma, Replay, Sessions, Slotted
from testbed.experiments.runs.compose import configured
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.hash_chain import block_contents
from testbed.run.build import build
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Swap
from testbed.sched.scheduler import Scheduler
from testbed.traces.agent_sessions import AgentSessions
from testbed.traces.azure import AzureCsv
from testbed.traces.burstgpt import BurstGptCsv
from testbed.traces.chat import ChatCsv
from testbed.traces.csv_lengths import CsvLengths, read_pairs
from testbed.traces.files import read_json
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.ragpulse import RagPulseJsonl
from testbed.traces.servegen import ServeGenFolder
from testbed.traces.sharegpt import ShareGptJson
from testbed.traces.synthetic import Fitted
from testbed.traces.vllm_log import VllmLog
from testbed.traces.wmt import WmtCsv

# Files of traces and logs

LENGTHS = "input_tokens,output_tokens\n"
WITH_IDS = "input_tokens,output_tokens,prompt_ids\n"
LONG_WORD = "x" * 50
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
CHAT = "conv_id,turn,history_plus_prompt_tokens,output_tokens\n0,0,74,918\n1,0,290,905\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
TIMED = "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n"
PACKED = gzip.compress((LENGTHS + "21,518\n" * 5000).encode())
MOON = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
STATS = {
    "input_toks": 1,
    "output_toks": 2,
    "queued_ts": 1.0,
    "first_token_ts": 2.0,
    "last_token_ts": 4.0,
}
AIPERF = {
    "metadata": {"request_start_ns": 1},
    "metrics": {
        "time_to_first_token": {"value": 100, "unit": "ms"},
        "request_latency": {"value": 200, "unit": "ms"},
        "usage_prompt_tokens": {},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
    },
}
TURN = {
    "t": 0,
    "type": "n",
    "model": "m",
    "in": 8,
    "out": 5,
    "hash_ids": [1, 2],
    "api_time": 1.0,
    "think_time": 0.0,
}
AGENT = {"t": 0, "type": "subagent", "duration_ms": 1000, "tool_tokens": 4, "requests": []}
RAG = {"timestamp": "1", "input_length": 10, "output_length": 9, "hash_ids": {}, "session_id": "s"}
RAG_PARTS = {
    "1_sys_prompt.jsonl": '{"hash_id": 1, "token_length": 16}',
    "2_passages.jsonl": '{"passage_id": 2, "token_length": 32}',
    "3_history.jsonl": '{"hash_id": 3, "token_length": 8}',
    "4_user_input.jsonl": '{"hash_id": 4, "token_length": 20}',
    "5_web_search.jsonl": '{"hash_id": 5, "token_length": 0}',
}
RATES = "0,2.0,1.0,Gamma,0.5,1.0\n600,0,0,,0,0\n1200,1.0,2.0,Weibull,0.5,3.4\n"
SERVEGEN = (
    '{"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"},'
    ' "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{0: 0.5, 4: 0.5}"}}'
)


def wmt(*years):
    return "year,src_tokens_llama,tgt_tokens_llama\n" + "".join(f"{year},5,6\n" for year in years)


def moon(**changed):
    return f"{json.dumps(MOON)}\n{json.dumps({**MOON, **changed})}\n"


def bench(**changed):
    return json.dumps({**BENCH, **changed})


def guidellm(*requests):
    return json.dumps({"benchmarks": [{"requests": {"successful": requests}}]})


def stats(**changed):
    return json.dumps({**STATS, **changed})


def session(*requests, block_size=4):
    return json.dumps(
        {
            "id": "s",
            "block_size": block_size,
            "tool_tokens": 4,
            "system_tokens": 4,
            "requests": requests,
        }
    )


def turn(**changed):
    return session({**TURN, **changed})


def agent(*absent, **changed):
    values = {**AGENT, **changed}
    return session({name: value for name, value in values.items() if name not in absent})


def rag(part=None, **changed):
    """The files of a trace of RAGPulse; part: another content of its passages."""
    parts = RAG_PARTS if part is None else {**RAG_PARTS, "2_passages.jsonl": json.dumps(part)}
    return {"0_trace.jsonl": json.dumps({**RAG, **changed}), **parts}


def servegen(rates=RATES, lengths=SERVEGEN):
    return {"chunk-3-trace.csv": rates, "chunk-3-dataset.json": lengths}


def shares(text):
    """The lengths of a client whose prompts have these shares."""
    return servegen(
        lengths=f'{{"0": {{"input_tokens": "{{{text}}}", "output_tokens": "{{1: 1}}"}}}}'
    )


def rows_of(kind, **options):
    return lambda path: kind(path, **options).rows(None, 0)


# By name: the file's own name, and what reads its path
READERS = {
    "csv": ("a.csv", rows_of(CsvLengths)),
    "csv.gz": ("a.csv.gz", rows_of(CsvLengths)),
    "csv of ids": ("a.csv", rows_of(CsvLengths, tokens_per_id=16)),
    "azure": ("azure.csv", rows_of(AzureCsv)),
    "wmt": ("wmt.csv", rows_of(WmtCsv, registered_prefix=0)),
    "wmt 9": ("wmt.csv", rows_of(WmtCsv, registered_prefix=0, year=9)),
    "wmt src": ("wmt.csv", rows_of(WmtCsv, registered_prefix=0, source_column="src")),
    "wmt -1": ("wmt.csv", rows_of(WmtCsv, registered_prefix=-1)),
    "chat": ("chat.csv", lambda path: ChatCsv(path).rows(5, 0)),
    "burstgpt": ("b.csv", rows_of(BurstGptCsv)),
    "sharegpt": ("talks.json", rows_of(ShareGptJson, tokenizer="unused")),
    "mooncake": ("m.jsonl", rows_of(MooncakeJsonl)),
    "sessions": ("s.jsonl", rows_of(AgentSessions)),
    "ragpulse": ("0_trace.jsonl", rows_of(RagPulseJsonl)),
    "servegen": ("", rows_of(ServeGenFolder)),
    "json": ("a.json", read_json),
    "pickle": ("lengths.pkl", read_pairs),
    "log": ("log.json", rows_of(VllmLog)),
    "log of lines": ("log.jsonl", rows_of(VllmLog)),
    "log of rows": ("log.csv", rows_of(VllmLog)),
}
# By reader: contents of its file, or of all files of its folder, and what the refusal names
FILES = {
    "csv": {
        "an empty file": ("", ()),
        "no rows": (LENGTHS, ()),
        "an empty first line": (f"\n{LENGTHS}3,4\n", ("first line",)),
        "a column is missing": ("input_tokens,out\n1,2\n", ("'output_tokens'",)),
        "a mistyped column": (
            "input_tokens,output_tokens,arrivals_s\n5,3,0\n",
            ("'arrivals_s'", "'arrival_s'"),
        ),
        "a column twice": ("input_tokens,input_tokens,output_tokens\n1,2,3\n", ("input_tokens",)),
        "a field less": (LENGTHS + "1,2\n3\n", ("line 3",)),
        "an empty line": (LENGTHS + "1,2\n\n3,4\n", ("line 3",)),
        "no input token": (LENGTHS + "1,2\n0,5\n", ("line 3", "input_tokens", "'0'")),
        "a negative output": (LENGTHS + "1,2\n4,-5\n", ("line 3", "output_tokens", "'-5'")),
        "a word": (LENGTHS + "1,2\n4,x\n", ("line 3", "output_tokens", "'x'")),
        "half a token": (LENGTHS + "1.5,2\n", ("line 2", "input_tokens", "'1.5'")),
        "more tokens than 31 bits": (
            LENGTHS + "2147483648,1\n",
            ("line 2", "input_tokens", "'2147483648'"),
        ),
        "a very long word": (LENGTHS + f"{LONG_WORD},5\n", ("line 2", "input_tokens", "x" * 40)),
        "a priority below 32 bits": (
            "priority,input_tokens,output_tokens\n-2147483648,1,1\n",
            ("priority", "'-2147483648'"),
        ),
        "a beam that is no switch": (
            "beam,input_tokens,output_tokens\n2,1,1\n",
            ("line 2", "beam", "'2'"),
        ),
        "no sequence": ("n,input_tokens,output_tokens\n0,1,1\n", ("line 2", "column n", "'0'")),
        "an infinite time": (
            "arrival_s,input_tokens,output_tokens\ninf,1,2\n",
            ("line 2", "arrival_s", "'inf'"),
        ),
        "ids that are no numbers": (
            WITH_IDS + f"5,5,{LONG_WORD}\n",
            ("line 2", "prompt_ids", "x" * 40),
        ),
        "packed without the suffix": (PACKED, (".gz",)),
    },
    "csv.gz": {
        "packed emptiness": ("", ()),
        "truncated": (PACKED[:-12], ()),
        "damaged": (PACKED[:40] + b"?????" + PACKED[45:], ()),
        "not packed": ((LENGTHS + "1,2\n").encode(), ()),
    },
    "csv of ids": {
        "too few": (WITH_IDS + "33,5,7 8\n", ("line 2", "prompt_ids", "33", "3")),
        "a word among them": (WITH_IDS + "33,5,7 x 9\n", ("line 2", "'7 x 9'")),
    },
    "azure": {
        "a word for a time": (AZURE + "yesterday,1,2\n", ("line 2", "TIMESTAMP", "'yesterday'")),
        "a letter in a time": (
            AZURE + "2023-11-16 18:15:4x.68,1,2\n",
            ("line 2", "TIMESTAMP", "'2023-11-16 18:15:4x.68'"),
        ),
        "a year that no clock has": (
            AZURE + "3023-11-16 18:15:46,1,2\n",
            ("line 2", "TIMESTAMP", "'3023-11-16 18:15:46'"),
        ),
        "no output token": (
            AZURE + "2023-11-16 18:15:46,1,0\n",
            ("line 2", "GeneratedTokens", "'0'"),
        ),
        "a column is missing": (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
            ("'GeneratedTokens'",),
        ),
        "columns of another file": ("a,b\n1,2\n", ("'a'",)),
        "a column too few": ("TIMESTAMP,ContextTokens\n1,2\n", ("GeneratedTokens",)),
    },
    "wmt 9": {
        "a year outside of eleven": (wmt(*range(2024, 2013, -1)), ("year=9", "2014", "2022"))
    },
    "wmt": {
        "the default year is missing": (wmt(2010, *range(2001, 2010)), ("year=2016", "2009")),
        "a year that is no number": (wmt(2016, "twenty16"), ("line 3, column year", "'twenty16'")),
    },
    "wmt src": {"no such column": (wmt(2014), ("'src'",))},
    "wmt -1": {"a negative prefix": (wmt(2016), ("prefix=-1",))},
    "chat": {
        "no prompt": (
            CHAT + "3,0,0,5\n",
            ("line 4", "history_plus_prompt_tokens", "'0'"),
        ),
        "a negative output": (CHAT + "3,0,5,-1\n", ("line 4", "output_tokens")),
    },
    "burstgpt": {
        "a word for tokens": (
            BURST + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,x,230,1317,API log\n",
            ("line 3", "Request tokens", "'x'"),
        ),
        "a word for a time": (
            BURST + "5,ChatGPT,472,18,490,API log\nsoon,ChatGPT,7,230,237,API log\n",
            ("line 3", "Timestamp", "'soon'"),
        ),
        "a negative answer": (
            BURST + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,7,-230,237,API log\n",
            ("line 3", "Response tokens", "'-230'"),
        ),
        "a column is missing": (
            BURST.replace("Response tokens", "Answer") + "5,ChatGPT,472,18,490,API log\n",
            ("'Response tokens'",),
        ),
        "only requests without an answer": (
            "Timestamp,Request tokens,Response tokens\n1,0,0\n",
            (),
        ),
    },
    "sharegpt": {
        "an empty list": ("[]", ()),
        "no list": ("{}", ()),
        "no messages": ('[{"id": 1}]', ("item 1",)),
        "a message without text": ('[{"conversations": [{"from": "gpt"}]}]', ("item 1",)),
        "a message that is null": (
            '[{"conversations": [{"from": "human", "value": null}]}]',
            ("item 1",),
        ),
        "a message in parts": (
            '[{"conversations": [{"from": "human", "value": [{"text": "a"}]}]}]',
            ("item 1",),
        ),
        "only empty conversations": ('[{"conversations": []}]', ()),
        "a truncated file": ('[{"conversations": [', ()),
        "a mistake on line 2": ('[{"id": 1},\n{]', ("line 2",)),
    },
    "mooncake": {
        "no input": (moon(input_length=0), ("line 2", "input_length=0")),
        "a text for tokens": (moon(output_length="7"), ("line 2", "output_length='7'")),
        "more than 31 bits": (moon(output_length=2**31), ("line 2", "output_length=2147483648")),
        "a time beyond all times": (
            moon(timestamp=10**15 + 1),
            ("line 2", "timestamp=1000000000000001"),
        ),
        "a time beyond floats": (moon(timestamp=10**400), ("line 2", "timestamp=10000")),
        "a negative time": (moon(timestamp=-1), ("line 2", "timestamp=-1")),
        "a switch for a time": (moon(timestamp=True), ("line 2", "timestamp=True")),
        "no time": (moon(timestamp=None), ("line 2", "timestamp=None")),
        "a time that is nan": (moon(timestamp=float("nan")), ("line 2", "timestamp=nan")),
        "a switch among the ids": (moon(hash_ids=[1, True]), ("line 2", "hash_ids")),
        "a text for ids": (moon(hash_ids="ab"), ("line 2", "hash_ids")),
        "an id too few": (moon(hash_ids=[1]), ("line 2", "hash_ids")),
        "an empty file": ("\n", ()),
        "truncated": (json.dumps(MOON) + '\n{"timestamp": 0, "in', ("line 2",)),
        "too deep": (json.dumps(MOON) + "\n" + "[" * 100_000, ("line 2",)),
        "a number too long": (
            json.dumps(MOON) + '\n{"timestamp": ' + "9" * 5000,
            ("line 2",),
        ),
    },
    "sessions": {
        "a truncated line": ("{", ("line 1",)),
        "a list": ("[]", ("line 1",)),
        "an object without requests": ("{}", ("line 1",)),
        "an empty file": ("", ()),
        "blocks of no token": (session(TURN, block_size=0), ("block_size=0",)),
        "two sizes of blocks": (f"{session(TURN)}\n{session(TURN, block_size=8)}", ("[4, 8]",)),
        "a number for a request": (session(TURN, 7), ("request 2",)),
        "no input": (turn(**{"in": 0}, hash_ids=[]), ("request 1", "in=0")),
        "a negative output": (turn(out=-1), ("request 1", "out=-1")),
        "an id too few": (turn(hash_ids=[1]), ("request 1", "hash_ids")),
        "a text among the ids": (turn(hash_ids=[1, "2"]), ("request 1", "hash_ids")),
        "an id of more than 31 bits": (turn(hash_ids=[1, 2**31]), ("request 1", "hash_ids")),
        "a negative id": (turn(hash_ids=[-1, 2]), ("request 1", "hash_ids")),
        "no ids": (turn(hash_ids=None), ("request 1", "hash_ids")),
        "a text for a time": (turn(api_time="1"), ("request 1", "api_time='1'")),
        "a negative think time": (turn(think_time=-1), ("request 1", "think_time=-1")),
        "no start": (agent(t=None), ("request 1", "t=None")),
        "no duration": (agent("duration_ms"), ("request 1", "duration_ms")),
        "no requests": (agent("requests"), ("request 1", "list 'requests'")),
        "nothing but a start": (
            agent("duration_ms", "tool_tokens", "requests"),
            ("request 1", "list 'requests'"),
        ),
        "a request of a sub-agent": (
            agent(requests=[{**TURN, "t": "x", "in": 4, "hash_ids": [1]}]),
            ("request 1", "sub-agent", "t='x'"),
        ),
    },
    "ragpulse": {
        "an id of no part": (rag(hash_ids={"sys_prompt": [7]}), ("line 1", "hash id 7")),
        "a switch": (rag(hash_ids={"sys_prompt": [True]}), ("line 1", "hash id True")),
        "ids in a list": (rag(hash_ids=[]), ("line 1", "hash_ids")),
        "a word for a time": (rag(timestamp="x"), ("line 1", "timestamp='x'")),
        "no input": (rag(input_length=0), ("line 1", "input_length=0")),
        "two ids of a part": (
            rag({"passage_id": 2, "other_id": 3, "token_length": 32}),
            ("2_passages.jsonl", "line 1"),
        ),
        "a text for an id of a part": (
            rag({"passage_id": "2", "token_length": 32}),
            ("2_passages.jsonl", "line 1"),
        ),
        "a negative length of a part": (
            rag({"passage_id": 2, "token_length": -1}),
            ("2_passages.jsonl", "line 1"),
        ),
    },
    "servegen": {
        "two columns": (servegen("0,1\n"), ("chunk-3-trace.csv", "line 1")),
        "an unknown distribution": (servegen("0,1,1,Pareto,1,1\n"), ("Pareto",)),
        "nothing in the interval": (servegen("0,0,0,,0,0\n"), ("3600 s",)),
        "no shape": (servegen("0,1,1,Gamma,1e-300,1\n"), ("Gamma", "1e-300")),
        "a start that is nan": (servegen("nan,1,1,Gamma,1,1\n"), ("Gamma", "nan s")),
        "out of order": (servegen("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n"), ()),
        "the same time twice": (servegen("0,9,1,Gamma,1,1\n0,9,1,Gamma,1,1\n"), ()),
        "no outputs": (servegen(lengths='{"0": {"input_tokens": "{}"}}'), ()),
        "a list": (servegen(lengths="[]"), ()),
        "a negative share": (shares("1: -1"), ()),
        "an infinite share": (shares("1: 1e999"), ()),
        "shares of nothing": (shares("1: 0.0"), ()),
        "a length of 32 bits": (shares(f"{2**31}: 1"), ()),
        "a length of 80 bits": (shares(f"{10**24}: 1"), ()),
        "a part of a token": (shares("1.7: 1"), ("1.7",)),
        "nested too deeply": (shares("(" * 9999), ()),
        "no client": ({}, ("chunk",)),
        **{
            f"a client {name!r}": ({f"chunk-{name}-trace.csv": RATES}, (f"chunk-{name}-trace.csv",))
            for name in ("x", "", "1.5", "²")
        },
    },
    "json": {"too deep": ("[" * 100_000, ("line 1",))},
    "pickle": {
        "a prompt of 80 bits": (pickle.dumps([(10**24, 5)]), ()),
        "an answer of 32 bits": (pickle.dumps([(5, 2**31)]), ()),
        "no prompt": (pickle.dumps([(0, 5)]), ()),
        "a prompt without ids": (pickle.dumps([([], 5)]), ()),
        "a negative length": (pickle.dumps([(-1, 5)]), ()),
        "a truth value": (pickle.dumps([(True, 5)]), ()),
        "a part of a token": (pickle.dumps([(1.5, 5)]), ()),
        "three lengths": (pickle.dumps([(1, 2, 3)]), ()),
        "an empty file": (b"", ()),
        "a protocol alone": (b"\x80\x04", ()),
        "a million marks": (b"(" * 10**6 + b".", ()),
        "a number": (b"I10\n.", ()),
    },
    "log": {
        "a list": ("[]", ("GuideLLM",)),
        "means without requests": (json.dumps({"mean_ttft_ms": 3}), ("--save-detailed",)),
        "no start times": (bench(start_times=None), ("start_times",)),
        "a short column": (bench(ttfts=[0.5]), ()),
        "a first token before its request": (bench(ttfts=[-1.0, 0.5, 0.0]), ("request 1",)),
        "no first token": (bench(ttfts=[None, 0.5, 0.0]), ("vllm bench serve",)),
        "one gap": (bench(itls=[1, [], []]), ("vllm bench serve",)),
        **{
            f"an output of {value!r}": (
                bench(output_lens=[3, value, 0], itls=[[], [0.02] * 9, []], errors=None),
                ("request 2", f"output_lens={value!r}"),
            )
            for value in (-1, 1.5, True, None)
        },
        "one error": (bench(errors=[""]), ("vllm bench serve",)),
        "no request": (guidellm(None), ("GuideLLM",)),
        "all failed": (bench(errors=["x"] * 3), ()),
        "two benchmarks": (json.dumps({"benchmarks": [{}, {}]}), ("2 benchmarks",)),
        "no benchmark": (json.dumps({"benchmarks": {}}), ("0 benchmarks",)),
        "a request without output": (guidellm({"prompt_tokens": 7}), ("request 1", "output=None")),
    },
    "log of lines": {
        "a list": ("[]", ("line 1",)),
        "a truncated line": ('{"input_toks": 1', ("line 1",)),
        "no input": (stats(input_toks=0), ("line 1", "input_toks=0")),
        "no time": (stats(first_token_ts=None), ("line 1", "first_token_ts=None")),
        "no class": (stats(priority=1 << 64), ("line 1", f"priority={1 << 64}")),
        "infinite": (stats(queued_ts=float("-inf")), ("line 1", "queued_ts=-inf")),
        "a first token before its request": (stats(queued_ts=3.0), ("line 1", "queued_ts")),
        "a request twice": (
            "\n".join(stats(request_id="r1", queued_ts=time) for time in (0.5, 1.0)),
            ("request_id=r1",),
        ),
        "arrivals in milliseconds": (
            "\n".join(stats(queued_ts=1.0 + i / 10, arrival_time=1000.0 * i) for i in range(2)),
            ("arrival_time", "seconds"),
        ),
        "a count without a value": (json.dumps(AIPERF), ("request 1", "prompt=None")),
    },
    "log of rows": {
        "a first token before its request": (
            TIMED + "9,3,0,0.1,0.2\n9,3,0.5,0.1,0.9\n",
            ("line 3", "first_token_s", "'0.1'"),
        ),
        "a first token after the last": (
            TIMED + "9,3,0,0.9,0.5\n",
            ("line 2", "first_token_s", "'0.9'"),
        ),
        "all tokens at once": (TIMED + "9,200,0,1,1\n", ("request 1 of 1", "200")),
        "copied rows": (TIMED + "9,2,0,1,2\n9,2,3,4,5\n" * 2, ()),
    },
}
CASES = [(reader, case) for reader, cases in FILES.items() for case in cases]
PYTHON_SAYS = ("too deep", "a number too long", "damaged", "nested too deeply")


@pytest.mark.parametrize(("reader", "case"), CASES)
def test_a_file_is_refused_by_name_line_and_column(tmp_path, reader, case, snapshot):
    name, read = READERS[reader]
    content, named = FILES[reader][case]
    files = content if isinstance(content, dict) else {name: content}
    for file, text in files.items():
        packed = file.endswith(".gz") and isinstance(text, str)
        put(tmp_path, file, text) if packed else (tmp_path / file).write_bytes(as_bytes(text))
    message = check_refusal(named, read, str(tmp_path / name))
    assert str(tmp_path) in message
    assert LONG_WORD not in message
    if case not in PYTHON_SAYS:  # whose words differ between releases
        assert message.replace(str(tmp_path), "FOLDER") == snapshot


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


# Lines of the command

LINES = {
    # mistakes
    "frobnicate": ("frobnicate",),
    "lis": ("list",),
    "rnu policy=paged": ("run",),
    "--hlep": ("--hlep", "--help"),
    "--verison": ("--version",),
    "import modle config.json": ("modle",),
    "show memroy runs/x": ("memory",),
    "gpu measure transfer": ("transfers",),
    "calibrate fit profil log.csv": ("profile",),
    "validate cost": ("cost", "costs"),
    "compare --htlm out.html a b": ("--htlm", "--html"),
    "capacity policy=paged --presicion 0.1": ("--precision",),
    "reproduce fig2 --seds 3": ("--seeds",),
    "list policy --config-dri x": ("--config-dir",),
    "bench --repeat 3": ("--repeat", "--repeats"),
    "bench --nope": ("--nope",),
    "run policy=paged --agian": ("--again",),
    "capacity policy=paged --share ten": ("--share ten",),
    "capacity policy=paged --share": ("--share",),
    "capacity policy=paged --share 0.5 --share 0.6": ("--share",),
    "reproduce fig2 --jobs 0": ("--jobs 0",),
    "reproduce fig2 --jobs two": ("--jobs two",),
    "show timeline runs/x --from -1": ("--from -1",),
    "show memory runs/x --from nan": ("--from nan",),
    "plot fig2 results --out x.doc": ("--out x.doc",),
    "compare": ("[NAME=]RUN",),
    "show memory": ("RUN",),
    "show memory runs/x runs/y": ("runs/y",),
    "gpu calibrate --model opt-13b": ("--out",),
    "calibrate fit constants beam": ("KIND=beam",),
    "lockstep vlm": ("SERVER=vlm", "vllm"),
    "run polcy=paged": ("polcy", "policy"),
    "run policy=pagd": ("paged",),
    "run arrivals.rat=2": ("arrivals.rate",),
    "run arrivals.rate=fast": ("arrivals.rate='fast'",),
    "list polcy": ("polcy", "policy"),
    "reproduce fig22": ("figure 'fig22'", "fig2"),
    "compare nowhere": ("nowhere",),
    "import model nowhere/config.json": ("nowhere/config.json",),
    "run --config-dir nowhere": ("--config-dir nowhere",),
    "validate nolog.csv": ("nolog.csv",),
    "plot fig2 nowhere": ("nowhere/fig2.csv",),
    # words
    "run scheduler=vllm_v1 speculation=draft_model speculation.drafter=3": ("speculation",),
    "run +system=vllm-v1 release=[]": ("release=[]", "0.33"),
    "run foo": ("foo",),
    "run hydra.mode=MULTIRUN seed=0,1": ("hydra.mode=MULTIRUN", "-m"),
    "run --config-dir": ("--config-dir",),
    "run --config-dir=mine model=odd server=h200": ("odd.yaml, line 2",),
    "run policy=prefix_caching eviction=arc": ("eviction=arc", "eviction@policy.eviction=arc"),
    "run +eviction=arc": ("eviction@policy.eviction=arc",),
    "run system=vllm-v1": ("+system=vllm-v1",),
    "run eviction@policy.eviction=arc": ("eviction@policy.eviction=",),
    "run outputs=nothing": ("outputs", "'nothing'"),
    "run -m arrivals.rate=0 outputs=summary hydra/launcher=joblib": ("arrivals.rate", "0"),
    "run -m seed=0,1 arrivals.rat=2": ("arrivals.rat",),
    "run -m arrivals.rate=glob(1*)": ("arrivals.rate=glob(1*)",),
    "run -m arrivals.rate=interval(1,2)": ("interval(1,2)",),
    "run ~polic": ("policy",),
    "run +arrivals.rat=2": ("rate", "~arrivals.rat"),
    "run rate=1": ("arrivals.rate",),
    "run polcy=1": ("policy",),
    "run hydra.run.dr=1": ("hydra.run.dir",),
    "run trace=csv trace.pat=1": ("trace.path",),
    "run policy=example_policy:Slabs sed=1": ("seed",),
    "run xyzzy=1": ("xyzzy",),
    "run -m policy=paged,null arrivals.duration_s=5 outputs=summary": ("policy=null",),
    "run -m speculation=null,heads arrivals.duration_s=5 outputs=summary": ("speculation=null",),
    # requests
    "run trace=csv trace.path=lengths.csv trace.prompt_ids_column=typo": ("lengths.csv", "'typo'"),
    "run arrivals.rate=1e9 arrivals.duration_s=1e5": ("arrivals.rate", "arrivals.duration_s"),
    "run arrivals.rate=1e300": ("arrivals.rate", "e+303"),
    "run arrivals=slotted arrivals.rate=1e300": ("arrivals.rate", "e+303"),
    "run arrivals=slotted arrivals.slot_s=1e-9": ("arrivals.slot_s",),
    "run trace=csv trace.path=late.csv arrivals=replay": ("1e+07 s", "arrivals.speedup"),
    "run trace=csv trace.path=timed.csv arrivals=replay arrivals.speedup=1e-6": (
        "arrivals.speedup",
    ),
    "run workload.mix=1:1,beam1:1": ("'beam1:1'",),
    "run beams=recorded workload.beam=true workload.num_seqs=2": ("beams.path",),
    "run workload.beam=true": ("workload.num_seqs=2",),
    "run beams=recorded beams.path=nowhere.csv workload.beam=true workload.num_seqs=2": (
        "nowhere.csv",
    ),
    "run beams=recorded beams.path=searches.csv": ("workload.beam=true",),
    "run arrivals=replay": ("arrivals=replay",),
    "run trace=csv trace.path=lengths.csv arrivals=sessions": ("trace=agent_sessions",),
    "run trace.model=nope": ("model='nope'",),
    # servers
    "run preemption=swap swap_space_gib=0": ("swap_space_gib=0", "preemption=recompute"),
    "run policy=grouped preemption=swap": ("preemption=swap", "preemption=recompute"),
    "run model=gemma-2-27b policy=grouped ~server.kv_memory_gib server.num_blocks=900": (
        "server.num_blocks=900",
        "gemma-2-27b",
        "server.kv_memory_gib",
    ),
    "run policy=paged +tier@server.tiers.dram=dram": ("server.tiers", "Paged", "policy=tiered"),
    "run ~server.kv_memory_gib server.num_blocks=9 server.workspace_gib=2": (
        "server.workspace_gib",
        "2",
    ),
    "run model=llama-3-8b model.num_kv_heads=3": ("num_kv_heads",),
    "run gpu@server.gpu=h200": (
        "a100-40gb",
        "h200",
        "~server.kv_memory_gib",
        "server.kv_memory_of.gpu=h200",
    ),
    "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb scheduler.max_num_seqs=0": (
        "scheduler.max_num_seqs=0",
    ),
    "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb scheduler.max_num_batched_tokens=-1": (
        "scheduler.max_num_batched_tokens=-1",
    ),
    "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb server.memory_utilization=7": (
        "server.memory_utilization=7",
    ),
    "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb server.num_gpus=0": (
        "server.num_gpus=0",
    ),
    "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb server.kv_memory_gib=3": (
        "server.kv_memory_gib=3",
    ),
    # costs
    "run cost.iterations=vllm-0.20": ("cost.iterations=vllm-0.20", "vllm_v1_async"),
    "run cost.choices.attention_scale=1e20 arrivals.duration_s=3": ("check costs",),
    "run cost.roofline.linear_flops=0.5": (
        "linear_flops=0.5",
        "cost.efficiencies.linear_flops=0.5",
    ),
    "run cost.path=h200-opt-13b-tp1 model=mixtral-8x7b server=h200 server.num_gpus=2": (
        "cost.path=h200-opt-13b-tp1",
        "mixtral-8x7b",
    ),
    "run cost.choices.experts=skewed model=mixtral-8x7b server=h200 server.num_gpus=2": (
        "experts=skewed",
        "cost.path",
    ),
    "run server=h200 cost=profile cost.path=h200-opt-13b-tp1 cost.choices.swap=foo": (
        "swap",
        "foo",
        "fused",
    ),
    "run server=h200 cost=profile cost.path=h200-opt-13b-tp1 cost.choices.cuda_graph_sizes=[0]": (
        "cuda_graph_sizes.0=0",
    ),
    "run cost=profile cost.path=h200-opt-13b-tp1": ("a100-40gb", "cost=auto"),
    "run cost=sosp23 gpu@cost.source=h100-80gb cost.path=h200-opt-13b-tp1": (
        "cost.source",
        "h100-80gb",
    ),
    "run cost=profile cost.path=lengths.csv": ("lengths.csv",),
    # plug-ins
    "run policy=syntax_mistake:Policy": ("syntax_mistake",),
    "run policy=not_a_policy:Policy": ("testbed.memory.policy.MemoryPolicy",),
    "run policy=custom policy._target_=own_parts.nothing": ("own_parts.nothing",),
    "run trace=custom trace._target_=own_parts.Rowless": ("own_parts.Rowless.rows",),
    "run scheduler=custom scheduler._target_=own_parts.Bare": (
        "own_parts.Bare",
        "~scheduler.max_num_seqs",
    ),
    "run policy=custom policy._target_=exits.Policy": ("exits.Policy",),
    "run policy=custom policy._target_=raises.Policy": ("raises.Policy",),
    "run policy=custom policy._target_=own_parts.LeavesLate": ("sys.exit(0)",),
    "run trace=csv trace.path=timed.csv arrivals=custom arrivals._target_=own_parts.Replayed": (
        "own_parts.Replayed",
    ),
    "run arrivals=custom arrivals._target_=own_parts.Fractions": ("own_parts.Fractions",),
    "run arrivals=custom arrivals._target_=own_parts.Text": ("own_parts.Text",),
    "run arrivals=custom arrivals._target_=own_parts.Beyond": ("own_parts.Beyond",),
    # commands
    "reproduce table1 --out lengths.csv": ("lengths.csv",),
    "check no_module:Policy": ("no_module",),
    "check not_a_policy:Policy": ("MemoryPolicy",),
    "check own_parts:NeedsALargePool": ("policy", "own_parts.py"),
    "check example_policy:Slabs no_such=1": ("no_such",),
    "check example_policy:Slabs --slots 0": ("--slots",),
    "compare a=nowhere": ("nowhere",),
    "compare mine": ("mine",),
    "show timeline nowhere": ("nowhere",),
    "show timeline mine --from x": ("--from",),
    "capacity paged": ("paged",),
    "capacity slo.ttft_s=-1": ("slo.ttft_s=-1",),
    "capacity slo.ttft_s=1 --share 2": ("share", "2"),
    "capacity slo.ttft_s=1 --low 3": ("low", "3"),
    "capacity slo.ttft_s=1 stop_at_latency=0.03": ("stop_at_latency=0.03",),
    "capacity slo.ttft_s=1 window_s=[0,5]": ("window_s=[0.0, 5.0]",),
    "capacity slo.ttft_s=1 arrivals.rat=2": ("arrivals.rate",),
    "capacity slo.ttft_s=1 --runs lengths.csv": ("lengths.csv",),
    "import model lengths.csv": ("lengths.csv",),
    "validate log.csv --within nan": ("nan",),
    "validate log.csv trace=alpaca arrivals.rate=5": ("trace=alpaca",),
    "validate log.csv window_s=[0,5]": ("window_s=[0,5]",),
    "calibrate fit profile log.csv ++workload.num_seqs=2 --from h200-opt-13b-tp1 --out a.json": (
        "workload.num_seqs=2",
    ),
    "calibrate fit profile nowhere.csv --from h200-opt-13b-tp1 --out a.json": ("nowhere.csv",),
    "gpu calibrate --model opt-13b:3 --out x": ("does not divide",),
    "gpu calibrate --model opt-13b llama-13b --out nowhere": ("need a folder",),
}
TOO_SMALL = {
    # too small
    "run model=opt-175b server=a100-40gb-x1": ("opt-175b",),
    "run 'server.kv_memory_gib={opt-13b: 500}'": (
        "server.kv_memory_gib.opt-13b",
        "500",
        "a100-40gb",
    ),
    "run ~server.kv_memory_gib server.num_blocks=999999": ("server.num_blocks", "a100-40gb"),
    # a preset that would not start
    "run +system=vllm-v1 model=llama-3.1-8b gpu=l4": ("model.max_len 33136",),
    "run +system=vllm-v1 model=llama-3-70b gpu=h100-80gb": ("server.num_gpus",),
    "run +system=vllm-v1 model=llama-3.1-8b gpu=h100-80gb server.num_gpus=3": (
        "server.num_gpus=3",
    ),
}
VALUES = {
    # values
    "arrivals.rate=0": ("arrivals.rate", "0"),
    "arrivals.rate=1e400": ("arrivals.rate", "inf"),
    "arrivals.duration_s=1e8 arrivals.rate=1e-7": ("arrivals.duration_s",),
    "policy.block_size=300": ("block_size=300",),
    "policy.block_size=1.5": ("policy.block_size", "1.5"),
    "window_s=3": ("window_s", "3"),
    "window_s=[5,1]": ("window_s",),
    "workload.beam=maybe": ("beam", "'maybe'"),
    "server.num_gpus=0.5": ("num_gpus", "0.5"),
    "server.kv_memory_gib=3": ("server.kv_memory_gib",),
    "server.num_blocks=900": ("server.num_blocks", "900", "~server.kv_memory_gib"),
    "server.memory_utilization=0.5": ("server.memory_utilization", "0.5", "~server.kv_memory_gib"),
    "model.num_layers=80": ("model.num_layers", "80", "model.name"),
    "cost.roofline.linear_flops=72": ("linear_flops", "72"),
    "cost.roofline.attention_bandwidth=56.9": ("attention_bandwidth", "56.9"),
    "server.gpu.memory_bandwidth=1555": ("server.gpu.memory_bandwidth", "1555", "bytes/s"),
    "swap_space_gib=1e300": ("swap_space_gib", "1e+300", "GiB"),
    "window_s=[1e300,1e301]": ("window_s", "1e+300"),
    "cost.roofline.linear_flops=0": ("linear_flops", "0"),
    "cost.roofline.layer_s=1e9": ("layer_s", "1000000000.0"),
    "server.num_gpus=2": ("opt-13b", "server.kv_memory_of.num_gpus=2"),
    "scheduler.max_num_batched_tokens=-1": ("max_num_batched_tokens", "-1"),
}

SLOW = ("run -m arrivals.rate=0 outputs=summary hydra/launcher=joblib",)  # from a worker


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] if line in SLOW else []) for line in LINES],
)
def test_a_line_is_refused_by_key_and_value(refused, tmp_path, line, snapshot):
    message = refused(line)
    assert message.startswith("testbed")
    assert ": error: " in message
    check_words(LINES[line], message)
    # libyaml names odd YAML in other words than PyYAML; an unread page of a slow test fails the run
    if "odd" not in line and line not in SLOW:
        assert message.replace(str(tmp_path), "FOLDER") == snapshot


@pytest.mark.parametrize("line", TOO_SMALL)
def test_an_answer_that_is_no_is_one_line(refused, line, snapshot):
    message = refused(line, expected=1)
    check_words(TOO_SMALL[line], message)
    assert "--" not in message.partition("error: ")[2]
    assert message == snapshot


@pytest.mark.parametrize("line", VALUES)
def test_a_value_outside_of_its_range_is_refused(line, snapshot):
    """`testbed run` reports such errors as it does those above."""
    overrides = OverridesParser.create().parse_overrides(line.split())
    values = {override.key_or_group: override.value() for override in overrides}
    with pytest.raises(InputError) as caught:
        build(configured((), values))
    check_words(VALUES[line], str(caught.value))
    assert str(caught.value) == snapshot


def test_debug_option_shows_the_traceback(testbed):
    with pytest.raises(InputError, match=r"arrivals\.rate=0"):
        testbed("run", "--debug", "arrivals.rate=0")


def test_sweep_refuses_a_class_with_a_built_in_choice(testbed, tmp_path):
    words = ("policy=paged,custom", "policy._target_=example_policy.Slabs")
    error = testbed.refused("run", "-m", *words, "arrivals.duration_s=5", "outputs=summary")
    check_words(words[1:], error)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) < 2


# Calls in Python

POOL = PoolSpec(64, 32)
SMALL = ServerSpec("small", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
ONE = Request(0, arrival_ps=0, prompt_len=5, output_len=5)
ROWS = Rows(np.array([1]), np.array([1]))
LENGTHS = {"prompt_len": [1], "output_len": [1]}
BUILT = ChunkedPrefill(Paged(POOL), Swap(), max_num_batched_tokens=64, max_num_seqs=4)
SIMULATE = {
    "an eviction order without a cache": ({"eviction": "arc"}, ("eviction",)),
    "a system that is nowhere": ({"system": "vllm-v9"}, ("vllm",)),
    "a class that is no policy": ({"policy": "json:JSONDecoder"}, ("JSONDecoder",)),
    "a class object that is no policy": ({"policy": int}, ("policy", "int")),
    "a function that makes nothing": ({"policy": lambda pool: None}, ("lambda",)),
    "a parameter that a class has not": (
        {"policy": Paged, "policy.blok_size": 3},
        ("blok_size", "block_size"),
    ),
    "no number": ({"rate": float("nan")}, ("arrivals.rate", "nan")),
    "objectives that are no mapping": ({"slo": 3}, ("slo", "3")),
    "a value of no type": ({"slo": {"ttft_s": object()}}, ("slo={'ttft_s': <",)),
    "sessions of lengths": (
        {"arrivals": "sessions", "trace": "sharegpt"},
        ("sessions",),
    ),
    "no sequence": ({"num_seqs": 0}, ("workload.num_seqs=0",)),
    **{
        f"a made policy and {key}": (
            {"policy": Paged(POOL), key: 1},
            (key,),
        )
        for key in ("null_blocks", "server.num_blocks", "server.kv_memory_gib", "swap_space_gib")
    },
    "costs beyond all time": (
        {"duration_s": 5, "software.overhead_s": 8e6},
        ("check costs",),
    ),
    "a frame without prompts": (
        {"trace": pd.DataFrame({"prompt": [1]})},
        ("'prompt_len'",),
    ),
    **{
        f"a frame with {name}": (
            {"trace": pd.DataFrame(LENGTHS | {name: [1]})},
            (f"'{name}'", f"'{meant}'"),
        )
        for name, meant in (
            ("arrival_time", "arrival_s"),
            ("session_id", "session"),
            ("prompt_id", "prompt_ids"),
        )
    },
    "a frame without rows": (
        {"trace": pd.DataFrame(LENGTHS)[:0], "rate": 1},
        ("the data frame",),
    ),
    "a frame with two lengths": (
        {"trace": pd.DataFrame(LENGTHS | {"input_tokens": [1]})},
        ("prompt_len", "input_tokens"),
    ),
    "a frame with too few ids": (
        {"trace": pd.DataFrame(LENGTHS | {"prompt_ids": [[1, 2]]})},
        ("prompt_ids", "2 ids"),
    ),
    "half a token": (
        {"trace": pd.DataFrame(LENGTHS | {"prompt_len": [1.5]})},
        ("prompt_len", "1.5"),
    ),
    "no time": ({"trace": pd.DataFrame(LENGTHS | {"arrival_s": [None]})}, ("arrival_s",)),
    "a time that is no time": (
        {
            "trace": pd.DataFrame(
                {"prompt_len": [1] * 3, "output_len": [1] * 3, "arrival_s": [0, float("nan"), 1]}
            )
        },
        ("line 3, column arrival_s: ''",),
    ),
    "a date for a time": (
        {"trace": pd.DataFrame(LENGTHS | {"arrival_s": pd.to_datetime(["2024-01-01"])})},
        ("arrival_s",),
    ),
    "a scheduler that is made": ({"scheduler": BUILT}, ("scheduler",)),
    "a rule of another kind": ({"preemption": Paged(POOL)}, ("preemption", "Paged")),
    "an abstract class": ({"scheduler": Scheduler}, ("Scheduler",)),
}
SWEEP = {
    "an axis without values": ({"policy": []}, ("policy", "an empty list")),
    "one wrong number": ({"rate": [1, -1]}, ("arrivals.rate", "-1")),
    "no process": ({"rate": [1], "jobs": -1}, ("jobs", "-1")),
    "objects for a folder": (
        {"policy": [lambda pool: Paged(pool)], "folder": "runs"},
        ("policy",),
    ),
}
CAPACITY = {
    "no objective": ({}, ("slo",)),
    "a rate": ({"ttft_s": 1, "rate": 3}, ("arrivals.rate",)),
    "out of reach": ({"ttft_s": 1e-9, "duration_s": 5}, ("slo", "1e-09 s on an idle engine")),
    "a list of requests": ({"tpot_s": 1, "trace": [ONE]}, ("arrivals.duration_s",)),
}
PARTS = {
    "a watermark above the pool": (lambda: Paged(POOL, watermark=1.5), ("watermark", "1.5")),
    "a buddy's unit of nothing": (
        lambda: ContiguousMax(POOL, block_size=0),
        ("block_size=0",),
    ),
    "a server too small": (
        lambda: SMALL.kv_slots(read_model("opt-13b")),
        ("opt-13b", "small"),
    ),
    "no burstiness": (lambda: Gamma(1, 10, 0), ("arrivals.burstiness", "0")),
    "more slots than can be drawn": (
        lambda: Slotted(1, 10, 1e-9),
        ("arrivals.slot_s=1e-09",),
    ),
    "a slot longer than all": (
        lambda: Slotted(1, 10, 30),
        ("arrivals.duration_s=10", "arrivals.slot_s=30"),
    ),
    "a slot and a half": (lambda: Slotted(1, 9, 6), ("arrivals.slot_s=6",)),
    "no speed": (lambda: Replay(0), ("arrivals.speedup", "0")),
    "all at once": (
        lambda: Gamma(1, 10, 1e12).times_ps(None, 0),
        ("arrivals.burstiness=1e+12",),
    ),
    "no session that waits": (lambda: Sessions().workload(ROWS, 1, False, 0), ("sessions",)),
    "nothing to replay": (lambda: Replay().times_ps(None, 0), ("arrivals=replay",)),
    "a trace without prompt content": (lambda: next(ROWS.prompts()), ("the trace",)),
    "blocks across ids": (lambda: block_contents((1, 2), 24, 48, 16), ("block_size=16", "24")),
    "no such model": (lambda: read_model("opt-1b"), ("model=opt-1b",)),
    "a negative number of rows": (lambda: Fitted("sharegpt").rows(-1, 0), ("num_rows=-1",)),
    "a negative seed": (lambda: Fitted("sharegpt").rows(1, -1), ("seed=-1",)),
    "a GPU's run": (
        lambda: front.simulate("engine=gpu", duration_s=1),
        ("engine", "testbed run engine=gpu"),
    ),
    "a limit that no row keeps": (
        lambda: Fitted("sharegpt").rows(9, 0, 2),
        ("sharegpt", "2 tokens"),
    ),
    "slots in NumPy's integers": (
        lambda: PoolSpec(np.int64(64), 32),
        ("num_slots=np.int64(64)",),
    ),
}


PARTS |= {
    "no start": (lambda: ServeGenFolder("folder", start_s=-1), ("start_s",)),
    "no duration": (lambda: ServeGenFolder("folder", duration_s=0), ("duration_s",)),
    "ids of no token": (lambda: CsvLengths("a.csv", tokens_per_id=0), ("tokens_per_id=0",)),
}


@pytest.fixture
def _nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def calls():
    """Calls that are refused, by name, each with the words of its refusal."""
    for name, (options, words) in SIMULATE.items():
        short = options if "trace" in options else {"duration_s": 1, **options}
        yield f"simulate, {name}", (partial(front.simulate, **short), words)
    for name, (options, words) in SWEEP.items():
        swept = partial(front.sweep, **{"duration_s": 1, "jobs": 1, **options})
        yield f"sweep, {name}", (swept, words)
    for name, (options, words) in CAPACITY.items():
        yield f"capacity, {name}", (partial(front.capacity, **options), words)
    yield from PARTS.items()


CALLS = dict(calls())


@pytest.mark.usefixtures("_nothing_is_written")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_by_name(name, snapshot):
    call, words = CALLS[name]
    message = re.sub("x[0-9a-f]{9,}", "x...", check_refusal(words, call))
    assert message == snapshot


def test_policy_already_in_use_is_refused():
    policy = Paged(PoolSpec(4096, 2048))
    policy.register_prefix(64)
    check_refusal(("policy",), front.simulate, policy=policy, rate=2, duration_s=30)
