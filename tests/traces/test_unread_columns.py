"""Every reader refuses columns of a trace that nothing reads; formats' own further
columns are not.
"""

import json

import pandas as pd
import pytest
from refusals import refuses

import testbed
from testbed.core.errors import InputError
from testbed.traces.agent_sessions import AgentSessions
from testbed.traces.azure import AzureCsv
from testbed.traces.burstgpt import BurstGptCsv
from testbed.traces.chat import ChatCsv
from testbed.traces.csv_lengths import CsvLengths
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.ragpulse import PART_FILES, RagPulseJsonl
from testbed.traces.vllm_log import VllmLog
from testbed.traces.wmt import WmtCsv

TURN = {"t": 0, "type": "n", "in": 64, "out": 2, "hash_ids": [1], "ttft": 0.1}
AGENT = {"t": 9, "type": "subagent", "duration_ms": 5, "status": "done", "requests": [TURN]}
LOGGED = {"input_toks": 8, "output_toks": 2, "scheduled_ts": 0.0}
LOGGED |= {"queued_ts": 0.0, "first_token_ts": 1.0, "last_token_ts": 2.0}
RAG = {"timestamp": "1", "input_length": 9, "output_length": 2, "hash_ids": {}}
# Readers of tables: what makes one of a path, and the columns and values of a row.
TABLES = {
    "csv": (CsvLengths, {"input_tokens": 8, "output_tokens": 2, "e2e_s": 1.5}),
    "azure": (
        AzureCsv,
        {"TIMESTAMP": "2023-11-16 18:15:46", "ContextTokens": 8, "GeneratedTokens": 1},
    ),
    "burstgpt": (
        BurstGptCsv,
        {"Timestamp": 5, "Model": "x", "Request tokens": 8, "Response tokens": 2},
    ),
    "wmt": (
        lambda path: WmtCsv(path, registered_prefix=0),
        {"year": 2016, "line": 1, "src_tokens_llama": 8, "tgt_tokens_llama": 2},
    ),
    "wmt, all years": (
        lambda path: WmtCsv(path, registered_prefix=0, year=None),
        {"year": 2015, "src_tokens_llama": 8, "tgt_tokens_llama": 2},
    ),
    "chat": (
        ChatCsv,
        {"conv_id": 1, "turn": 1, "history_plus_prompt_tokens": 8, "output_tokens": 2},
    ),
    "log": (
        VllmLog,
        {
            "input_tokens": 8,
            "output_tokens": 2,
            "arrival_s": 0,
            "first_token_s": 1,
            "finish_s": 2,
        },
    ),
}
# Readers of JSON lines: an item, and the objects in it that may have a further key.
ITEMS = {
    "mooncake": (MooncakeJsonl, {"timestamp": 0, "input_length": 8, "output_length": 2}, [[]]),
    "ragpulse": (RagPulseJsonl, RAG, [[]]),
    "log": (VllmLog, LOGGED, [[]]),
    "agent sessions": (
        AgentSessions,
        {"id": "a", "block_size": 64, "totals": {}, "requests": [TURN, AGENT]},
        [[], ["requests", 0], ["requests", 1], ["requests", 1, "requests", 0]],
    ),
}
UNREAD = ["timestamp_ms", "time", "arrived_at", "foo"]


def table(folder, row):
    path = folder / "file.csv"
    path.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    return str(path)


def read(trace):
    return trace.read() if hasattr(trace, "read") else trace.rows(None, 0)


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_the_format_are_read(name, tmp_path):
    make, row = TABLES[name]
    assert read(make(table(tmp_path, row))).prompt_len.tolist() == [8]


@pytest.mark.parametrize("unread", UNREAD)
@pytest.mark.parametrize("name", TABLES)
def test_a_column_that_nothing_reads_is_refused(name, unread, tmp_path):
    make, row = TABLES[name]
    refuses(repr(unread), lambda: read(make(table(tmp_path, row | {unread: 1}))))


def lines(folder, item):
    for name in PART_FILES:
        (folder / f"{name}.jsonl").write_text('{"hash_id": 1, "token_length": 2}\n')
    path = folder / "file.jsonl"
    path.write_text(json.dumps(item) + "\n")
    return str(path)


@pytest.mark.parametrize("name", ITEMS)
def test_keys_of_the_format_are_read(name, tmp_path):
    make, item, _ = ITEMS[name]
    assert read(make(lines(tmp_path, item))).prompt_len[0] in (8, 9, 64)


@pytest.mark.parametrize("unread", UNREAD)
@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, (*_, places) in ITEMS.items() for place in places]
)
def test_a_key_that_nothing_reads_is_refused(name, place, unread, tmp_path):
    make, item, _ = ITEMS[name]
    changed = json.loads(json.dumps(item))
    inner = changed
    for key in place:
        inner = inner[key]
    inner[unread] = 1
    refuses(repr(unread), lambda: read(make(lines(tmp_path, changed))))


@pytest.mark.parametrize("unread", ["timestamp", *UNREAD])
def test_a_column_of_a_data_frame_that_nothing_reads_is_refused(unread):
    frame = pd.DataFrame({"prompt_len": [8, 8], "output_len": [2, 2], unread: [0.5, 1.5]})
    with pytest.raises(InputError, match=unread):
        testbed.simulate(model="opt-13b", trace=frame)


def test_the_requests_of_a_run_are_a_trace():
    """Their latencies are no input."""
    served = testbed.simulate(model="opt-13b", rate=1, duration_s=5).requests
    again = testbed.simulate(model="opt-13b", trace=served)
    assert again.requests["arrival_s"].tolist() == pytest.approx(
        (served["arrival_s"] - served["arrival_s"][0]).tolist()
    )


def test_an_unread_column_of_a_default_name_is_refused_beside_a_renamed_one(tmp_path):
    path = table(tmp_path, {"input_tokens": 8, "output_tokens": 2, "at": 1, "arrival_s": 2})
    refuses("'arrival_s'", lambda: CsvLengths(path, arrival_column="at").read())
