"""Files of other tools: read with their meaning (experiments/PUBLIC_CASES.md), or refused."""

import gzip
import json

import pytest
from refusals import refuses

from testbed.core.hf_config import model_of
from testbed.traces.agent_sessions import AgentSessions
from testbed.traces.azure import AzureCsv
from testbed.traces.burstgpt import BurstGptCsv
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.servegen import ServeGenFolder
from testbed.traces.vllm_log import VllmLog


def lines(*items):
    return "\n".join(map(json.dumps, items))


BENCH = {
    "input_lens": [128, 64, 32],
    "output_lens": [3, 0, 2],
    "ttfts": [0.1, 0.0, 0.12],
    "itls": [[0.02, 0.02], [], [0.02]],
    "start_times": [1.0, 1.1, 1.2],
    "errors": ["", "HTTP 500", ""],
}
RUN = {  # the same without its failed request, with what the client counts
    "completed": 2,
    "duration": 2.0,
    "mean_ttft_ms": 110.0,
    "input_lens": [128, 32],
    "output_lens": [3, 2],
    "ttfts": [0.1, 0.12],
    "itls": [[0.02, 0.02], [0.02]],
    "start_times": [1.0, 1.2],
}
COUNTS = {  # of SGLang's client, without --output-details
    "completed": 2,
    "duration": 0.2,
    "request_rate": float("inf"),
    "max_concurrency": 2,
    "total_output_tokens_retokenized": 9,
}
SGLANG = COUNTS | {
    key: value for key, value in RUN.items() if key not in ("start_times", "duration")
}
TIMES = {"request_start": 1.0, "first_token_iteration": 1.1, "last_token_iteration": 1.2}
SERVED = {"prompt_tokens": 256, "output_tokens": 4, "info": {"timings": TIMES}}
LATER = SERVED | {"prompt_tokens": 99}


def guidellm(*benchmarks):
    return json.dumps({"benchmarks": [{"requests": {"successful": list(b)}} for b in benchmarks]})


def mooncake(*rows):
    keys = "timestamp", "input_length", "output_length", "hash_ids"
    return lines(*(dict(zip(keys, row, strict=False)) for row in rows))


def session(*requests, size=64):
    return {"block_size": size, "requests": list(requests)}


def turn(length, ids, **more):
    return {"t": 0, "type": "n", "in": length, "out": 20, "hash_ids": ids, **more}


def aiperf(*, error=None, phase="profiling", **metrics):
    metadata = {"request_start_ns": 1_700_000_000_000_000_000, "benchmark_phase": phase}
    counts = {"input_sequence_length": 250, "output_sequence_length": 3, **metrics}
    values = {name: {"value": value, "unit": "tokens"} for name, value in counts.items()}
    times = {"time_to_first_token": 120.5, "request_latency": 400.0}
    values |= {name: {"value": value, "unit": "ms"} for name, value in times.items()}
    return {"metadata": metadata, "metrics": {} if error else values, "error": error}


QWEN = {"timestamp": 61.114, "input_length": 20, "output_length": 8, "hash_ids": [4, 5]}
QWEN |= {"chat_id": 2, "parent_chat_id": 1, "turn": 2, "type": "text"}
FIRST = QWEN | {"timestamp": 0.5, "chat_id": 1, "parent_chat_id": -1, "turn": 1}
OTHER = FIRST | {"timestamp": 62.25, "chat_id": 3}
SCOPED = [session(turn(64, [1])) | {"hash_id_scope": scope} for scope in ("global", "local")]
VIDUR = {
    "input_column": "num_prefill_tokens",
    "output_column": "num_decode_tokens",
    "arrival_column": "arrived_at",
}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Session ID,Request tokens,Response tokens\n"
HEAD = "input_tokens,output_tokens"
TWO = mooncake((0, 128, 16, [1, 2]), (10, 192, 16, [1, 2, 3]))

# Name in the table; reader, its options, file name and text; lengths of the prompts.
READ = [
    (
        "azure2024.csv",
        AzureCsv,
        {},
        "a.csv",
        AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5",
        [2162],
    ),
    (
        "azure, times without a zone",
        AzureCsv,
        {},
        "a.csv",
        AZURE + "2023-11-16 18:15:46.68,9,5",
        [9],
    ),
    ("azure, relative times", AzureCsv, {}, "a.csv", f"arrival_s,{HEAD}\n0.5,7,1", [7]),
    ("bench_failed.json", VllmLog, {}, "b.json", json.dumps(BENCH), [128, 32]),
    (
        "burstgpt.csv",
        BurstGptCsv,
        {},
        "b.csv",
        BURST + "5,s1,472,18\n45,s1,9,0\n50,s2,7,3",
        [472, 7],
    ),
    (
        "burstgpt, without sessions",
        BurstGptCsv,
        {},
        "b.csv",
        "Timestamp,Request tokens,Response tokens\n5,4,1",
        [4],
    ),
    (
        "closed_loop.csv",
        CsvLengths,
        {},
        "c.csv",
        f"{HEAD},session\n1000,50,0\n1000,50,1",
        [1000, 1000],
    ),
    (
        "csv, rows without contents",
        CsvLengths,
        {},
        "c.csv",
        f"{HEAD},prompt_ids\n32,1,7 8\n32,1,",
        [32, 32],
    ),
    (
        "csv, think times of sessions",
        CsvLengths,
        {},
        "c.csv",
        f"{HEAD},session,think_s\n8,1,a,0\n9,1,a,2.5",
        [8, 9],
    ),
    ("csv, with a byte order mark", CsvLengths, {}, "c.csv", f"\ufeff{HEAD}\n8,1", [8]),
    ("csv, packed", CsvLengths, {}, "c.csv.gz", f"{HEAD}\n8,1", [8]),
    ("guidellm_two.json", VllmLog, {"benchmark": 1}, "g.json", guidellm([SERVED], [LATER]), [99]),
    (
        "bench_append.json, trace.benchmark",
        VllmLog,
        {"benchmark": 1},
        "b.json",
        lines(BENCH, RUN),
        [128, 32],
    ),
    (
        "sweep_summary.json, trace.benchmark",
        VllmLog,
        {"benchmark": 0},
        "summary.json",
        json.dumps([RUN, BENCH]),
        [128, 32],
    ),
    ("guidellm, one rate", VllmLog, {}, "g.json", guidellm([SERVED, LATER]), [256, 99]),
    ("mooncake_block64.jsonl", MooncakeJsonl, {"tokens_per_id": 64}, "m.jsonl", TWO, [128, 192]),
    (
        "mooncake_two_ids.jsonl",
        MooncakeJsonl,
        {"tokens_per_id": 16},
        "m.jsonl",
        mooncake((0, 10, 5, [0]), (200, 20, 8, [0, 1])),
        [10, 20],
    ),
    (
        "mooncake, no hash_ids",
        MooncakeJsonl,
        {},
        "m.jsonl",
        mooncake((0, 10, 5), (1, 20, 8)),
        [10, 20],
    ),
    (
        "mooncake, rows without hash_ids",
        MooncakeJsonl,
        {},
        "m.jsonl",
        mooncake((0, 10, 5, [4]), (1, 20, 8)),
        [10, 20],
    ),
    (
        "qwen_bailian.jsonl",
        MooncakeJsonl,
        {"tokens_per_id": 16, "time_unit": "s"},
        "q.jsonl",
        lines(FIRST, QWEN, OTHER),
        [20, 20, 20],
    ),
    (
        "mooncake, hours in seconds, trace.time_unit",
        MooncakeJsonl,
        {"time_unit": "s"},
        "m.jsonl",
        mooncake(*((9 * i, 10, 5) for i in range(401))),
        [10] * 401,
    ),
    (
        "mooncake, no timestamps",
        MooncakeJsonl,
        {},
        "m.jsonl",
        lines({"input_length": 10, "output_length": 5}),
        [10],
    ),
    (
        "aiperf, profile_export.jsonl",
        VllmLog,
        {},
        "p.jsonl",
        lines(aiperf(phase="warmup"), aiperf(usage_prompt_tokens=256), aiperf(error={"code": 500})),
        [256],
    ),
    (
        "agent sessions, hash_id_scope",
        AgentSessions,
        {},
        "s.jsonl",
        lines(SCOPED[0], SCOPED[0]),
        [64, 64],
    ),
    (
        "shared_prefix.jsonl",
        AgentSessions,
        {"shared_ids": True},
        "s.jsonl",
        lines(session(turn(64, [1])), session(turn(64, [1]))),
        [64, 64],
    ),
    (
        "agent sessions, think times",
        AgentSessions,
        {},
        "s.jsonl",
        lines(session(turn(64, [1]), turn(128, [1, 2], think_time=3.5))),
        [64, 128],
    ),
    (
        "vidur.csv",
        CsvLengths,
        VIDUR,
        "v.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens,request_id\n0.0,3772,54,0",
        [3772],
    ),
]
# The same; part of the message, which says what to do.
REFUSED = [
    (
        "bench_old.json",
        VllmLog,
        {},
        "b.json",
        json.dumps({k: v for k, v in BENCH.items() if k != "start_times"}),
        "closed_loop",
    ),
    (
        "vllm bench, no list of requests",
        VllmLog,
        {},
        "b.json",
        '{"completed": 3}',
        "--save-detailed",
    ),
    (
        "vllm bench, no such run",
        VllmLog,
        {"benchmark": 1},
        "b.json",
        json.dumps(BENCH),
        "it contains 1",
    ),
    (
        "aiperf, trace.benchmark",
        VllmLog,
        {"benchmark": 0},
        "p.jsonl",
        lines(aiperf()),
        "leave trace.benchmark out",
    ),
    (
        "bench_append.json",
        VllmLog,
        {},
        "b.json",
        lines(RUN | {"request_rate": 4.0}, RUN | {"request_rate": 8.0}),
        "2 benchmarks, one for each run .request_rate 4.0, 8.0",
    ),
    (
        "sweep_summary.json",
        VllmLog,
        {},
        "summary.json",
        json.dumps([RUN, RUN]),
        "trace.benchmark=0 to 1",
    ),
    (
        "vllm bench, other counts than rows",
        VllmLog,
        {},
        "b.json",
        json.dumps(BENCH | {"completed": 3}),
        "completed=3: 2 requests were served",
    ),
    (
        "vllm bench, times in milliseconds",
        VllmLog,
        {},
        "b.json",
        json.dumps(RUN | {"ttfts": [100.0, 120.0], "itls": [[20.0, 20.0], [20.0]]}),
        "they are in seconds",
    ),
    (
        "vllm bench, starts in milliseconds",
        VllmLog,
        {},
        "b.json",
        json.dumps(RUN | {"start_times": [1000.0, 61_000.0]}),
        "60000 s apart",
    ),
    (
        "sglang, bench_serving",
        VllmLog,
        {},
        "b.jsonl",
        json.dumps(SGLANG | {"request_rate": 4.0}),
        "--max-concurrency N",
    ),
    (
        "sglang, other concurrency",
        VllmLog,
        {},
        "b.jsonl",
        json.dumps(SGLANG | {"duration": 9.0}),
        "2 at a time, take 0.14 s",
    ),
    ("sglang, no lists", VllmLog, {}, "b.jsonl", json.dumps(COUNTS), "--output-details"),
    ("guidellm_one.json", VllmLog, {}, "g.json", guidellm([SERVED, SERVED]), "remove the copies"),
    (
        "guidellm_two.json",
        VllmLog,
        {},
        "g.json",
        guidellm([SERVED], [LATER]),
        "trace.benchmark=0 to 1",
    ),
    (
        "guidellm, no such rate",
        VllmLog,
        {"benchmark": 2},
        "g.json",
        guidellm([SERVED], [LATER]),
        "it contains 2",
    ),
    ("guidellm, nothing served", VllmLog, {}, "g.json", guidellm(), "contains 0 benchmarks"),
    (
        "metrics dump",
        VllmLog,
        {},
        "m.txt",
        "# HELP vllm:num_requests_running x\n# TYPE a gauge",
        "dump of metrics",
    ),
    ("mooncake_block64.jsonl", MooncakeJsonl, {}, "m.jsonl", TWO, "trace.tokens_per_id=64"),
    (
        "mooncake, hours in seconds",
        MooncakeJsonl,
        {},
        "m.jsonl",
        mooncake(*((9 * i, 10, 5) for i in range(401))),
        "its 401 requests come within 3,600 ms .give trace.time_unit=us, ms or s",
    ),
    (
        "mooncake, no block fits",
        MooncakeJsonl,
        {},
        "m.jsonl",
        mooncake((0, 10, 5, [1, 2, 3]), (0, 20, 5, [1])),
        "mend the file",
    ),
    (
        "qwen_bailian.jsonl",
        MooncakeJsonl,
        {"tokens_per_id": 16},
        "q.jsonl",
        lines(FIRST, QWEN),
        "trace.time_unit=s",
    ),
    (
        "mooncake, fractions of a millisecond",
        MooncakeJsonl,
        {"tokens_per_id": 16},
        "q.jsonl",
        mooncake((0, 10, 5, [0]), (61.114, 20, 8, [0, 1])),
        "trace.time_unit=s",
    ),
    (
        "mooncake, a line without a timestamp",
        MooncakeJsonl,
        {},
        "m.jsonl",
        lines(
            {"input_length": 10, "output_length": 5},
            {"timestamp": 0, "input_length": 10, "output_length": 5},
        ),
        "some lines have no timestamp",
    ),
    (
        "aiperf, no streaming",
        VllmLog,
        {},
        "p.jsonl",
        lines({"metadata": {"request_start_ns": 1}, "metrics": {}, "error": None}),
        "--streaming",
    ),
    (
        "agent sessions, both scopes",
        AgentSessions,
        {},
        "s.jsonl",
        lines(*SCOPED),
        "split it",
    ),
    (
        "agent sessions, another scope than asked for",
        AgentSessions,
        {"shared_ids": False},
        "s.jsonl",
        lines(SCOPED[0]),
        "leave trace.shared_ids out",
    ),
    (
        "agent sessions, an unknown scope",
        AgentSessions,
        {},
        "s.jsonl",
        lines(SCOPED[0] | {"hash_id_scope": "file"}),
        "neither local nor global",
    ),
    ("servegen, a file", ServeGenFolder, {}, "t.jsonl", TWO, "reads a folder of clients"),
    ("burstgpt, all failed", BurstGptCsv, {}, "b.csv", BURST + "5,s1,472,0", "another file"),
    (
        "agent sessions, several block sizes",
        AgentSessions,
        {},
        "s.jsonl",
        lines(session(turn(64, [1])), session(turn(64, [1, 2]), size=32)),
        "must have the same",
    ),
    ("csv, semicolons", CsvLengths, {}, "c.csv", "input_tokens;output_tokens\n8;1", "with commas"),
    (
        "csv, negative think time",
        CsvLengths,
        {},
        "c.csv",
        f"{HEAD},session,think_s\n8,1,a,-1",
        "at least 0",
    ),
    (
        "csv, columns of Vidur",
        CsvLengths,
        {},
        "v.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1",
        "rename one",
    ),
]


def reader(kind, options, folder, name, text):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return kind(str(path), **options)


@pytest.mark.parametrize(
    ("kind", "options", "name", "text", "prompts"),
    [case[1:] for case in READ],
    ids=[case[0] for case in READ],
)
def test_files_are_read(tmp_path, kind, options, name, text, prompts):
    assert reader(kind, options, tmp_path, name, text).rows(None, 0).prompt_len.tolist() == prompts


@pytest.mark.parametrize(
    ("kind", "options", "name", "text", "message"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_files_are_refused_with_a_way_out(tmp_path, kind, options, name, text, message):
    refuses(message, reader(kind, options, tmp_path, name, text).rows, None, 0)


def rows_of(case, folder):
    _, kind, options, name, text, _ = next(item for item in READ if item[0] == case)
    return reader(kind, options, folder, name, text).rows(None, 0)


def test_rows_without_ids_share_nothing(tmp_path):
    for case in ("csv, rows without contents", "mooncake, rows without hash_ids"):
        known, unknown = rows_of(case, tmp_path).prompt_ids
        assert len(unknown) > 0
        assert not set(known) & set(unknown)
    assert rows_of("mooncake, no hash_ids", tmp_path).prompt_ids is None


def test_sessions_and_think_times_are_kept(tmp_path):
    rows = rows_of("csv, think times of sessions", tmp_path)
    assert (rows.session.tolist(), rows.think_s.tolist()) == ([0, 0], [0.0, 2.5])
    assert rows_of("burstgpt.csv", tmp_path).session.tolist() == [0, 1]
    assert rows_of("agent sessions, think times", tmp_path).turns.wait_s.tolist() == [0.0, 3.5]


def test_times_are_in_the_unit_that_the_format_has(tmp_path):
    rows = rows_of("qwen_bailian.jsonl", tmp_path)
    assert rows.arrival_s.tolist() == pytest.approx([0.0, 60.614, 61.75])
    assert rows.session.tolist() == [0, 0, 1]
    rows = rows_of("mooncake_two_ids.jsonl", tmp_path)
    assert rows.arrival_s.tolist() == [0.0, 0.2]
    assert rows_of("mooncake, no timestamps", tmp_path).arrival_s is None


def test_chats_are_sessions_whatever_the_order_of_the_lines(tmp_path):
    late = [QWEN | {"chat_id": chat, "parent_chat_id": 7, "turn": 5} for chat in (8, 9)]
    path = tmp_path / "q.jsonl"
    path.write_text(lines(*late, QWEN, OTHER, FIRST))
    rows = MooncakeJsonl(str(path), tokens_per_id=16, time_unit="s").read()
    assert rows.session.tolist() == [0, 0, 1, 2, 1]


def test_the_first_chunk_of_a_chat_is_the_role(tmp_path):
    """vLLM sends it as an event of its own, behind which each token has one."""
    chat = RUN | {"backend": "openai-chat", "itls": [[0.0, 0.02, 0.02], [0.0, 0.02]]}
    log = reader(VllmLog, {}, tmp_path, "b.json", json.dumps(chat))
    assert log.read().output_len.tolist() == chat["output_lens"]
    assert log.times.tpot_s.tolist() == pytest.approx([0.02, 0.02])
    assert log.remarks == []


def test_aiperf_counts_by_the_server_and_times_by_the_client(tmp_path):
    name = "aiperf, profile_export.jsonl"
    _, kind, options, file, text, _ = next(item for item in READ if item[0] == name)
    log = reader(kind, options, tmp_path, file, text)
    assert log.times.ttft_s.tolist() == pytest.approx([0.1205], abs=1e-6)
    assert log.times.e2e_s.tolist() == pytest.approx([0.4], abs=1e-6)
    assert log.times.output_len.tolist() == [3]
    assert not log.is_of_engine
    assert "1 of 2 requests failed" in log.remarks[0]


def test_a_file_s_scope_of_ids_decides_what_is_shared(tmp_path):
    first, second = rows_of("agent sessions, hash_id_scope", tmp_path).prompt_ids
    assert first == second
    path = tmp_path / "local.jsonl"
    path.write_text(lines(SCOPED[1], SCOPED[1]))
    assert len(set(AgentSessions(str(path)).rows(None, 0).prompt_ids)) == 2
    assert len(set(AgentSessions(str(path), shared_ids=False).rows(None, 0).prompt_ids)) == 2


def test_ids_are_of_the_session_unless_they_are_shared(tmp_path):
    first, second = rows_of("shared_prefix.jsonl", tmp_path).prompt_ids
    assert first == second
    apart = AgentSessions(str(tmp_path / "s.jsonl")).rows(None, 0).prompt_ids
    assert len(set(apart)) == 2


PLAIN = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
PLAIN |= {"num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 99}
CONFIGS = {
    "config.json, bitsandbytes": (
        PLAIN | {"quantization_config": {"quant_method": "bitsandbytes"}},
        "weight_bits",
    ),
    "config.json, text of an unknown type": (
        {"model_type": "new", "text_config": PLAIN | {"model_type": "newer"}},
        "by hand",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_models_that_are_not_read_are_refused_with_a_way_out(tmp_path, case):
    values, message = CONFIGS[case]
    (tmp_path / "config.json").write_text(json.dumps(values))
    refuses(message, model_of, tmp_path / "config.json")
