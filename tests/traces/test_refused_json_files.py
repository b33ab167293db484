"""JSON files that are refused in one line: the file, the line or item, the field and its value."""

import json

import pytest
from trace_files import check_file_is_refused

from testbed.traces.agent_sessions import AgentSessions
from testbed.traces.mooncake import MooncakeJsonl
from testbed.traces.ragpulse import RagPulseJsonl
from testbed.traces.sharegpt import ShareGptJson

TRUNCATED = ("not valid JSON, or truncated",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[]", ("a JSON list with at least one item",), id="an empty list"),
        pytest.param("{}", ("must be a JSON list",), id="no list"),
        pytest.param('[{"id": 1}]', ("item 1", "not a ShareGPT conversation"), id="no messages"),
        pytest.param(
            '[{"conversations": [{"from": "gpt"}]}]',
            ("item 1", "not a ShareGPT conversation"),
            id="a message without text",
        ),
        pytest.param(
            '[{"conversations": []}]',
            ("no conversation has a human message",),
            id="only empty conversations",
        ),
        pytest.param('[{"conversations": [', TRUNCATED, id="a truncated file"),
        pytest.param('[{"id": 1},\n{]', ("line 2", "not valid JSON"), id="a mistake on line 2"),
    ],
)
def test_conversations_are_refused_by_item(tmp_path, text, words):
    check_file_is_refused(
        tmp_path,
        {"talks.json": text},
        words,
        lambda path: ShareGptJson(path, tokenizer="unused").rows(None, 0),
    )


MOON = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param(
            {"input_length": 0}, ("input_length=0", "not a whole number of tokens"), id="no input"
        ),
        pytest.param({"output_length": "7"}, ("output_length='7'",), id="a text for tokens"),
        pytest.param(
            {"output_length": 2**31}, ("output_length=2147483648",), id="more than 31 bits"
        ),
        pytest.param(
            {"timestamp": 10**15 + 1},
            ("timestamp=1000000000000001", "not a time in milliseconds"),
            id="a time beyond all times",
        ),
        pytest.param({"timestamp": 10**400}, ("timestamp=10000",), id="a time beyond floats"),
        pytest.param(
            {"timestamp": -1}, ("timestamp=-1", "not a time in milliseconds"), id="a negative time"
        ),
        pytest.param({"timestamp": True}, ("timestamp=True",), id="a switch for a time"),
        pytest.param({"timestamp": None}, ("timestamp=None",), id="no time"),
        pytest.param({"timestamp": float("nan")}, ("timestamp=nan",), id="a time that is nan"),
        pytest.param(
            {"hash_ids": [1, True]},
            ("hash_ids", "not a list of whole numbers"),
            id="a switch among the ids",
        ),
        pytest.param({"hash_ids": "ab"}, ("hash_ids", "not a list"), id="a text for ids"),
        pytest.param({"hash_ids": [1]}, ("1 hash_ids for 2 blocks of 512",), id="an id too few"),
    ],
)
def test_mooncake_requests_are_refused_by_line_and_field(tmp_path, changed, words):
    text = f"{json.dumps(MOON)}\n{json.dumps({**MOON, **changed})}\n"
    check_file_is_refused(
        tmp_path,
        {"m.jsonl": text},
        ("line 2", *words),
        lambda path: MooncakeJsonl(path).rows(None, 0),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("\n", ("is empty",), id="an empty file"),
        pytest.param(
            json.dumps(MOON) + '\n{"timestamp": 0, "in', ("line 2", *TRUNCATED), id="truncated"
        ),
    ],
)
def test_mooncake_files_are_refused_as_a_whole(tmp_path, text, words):
    check_file_is_refused(
        tmp_path, {"m.jsonl": text}, words, lambda path: MooncakeJsonl(path).rows(None, 0)
    )


REQUEST = {
    "t": 0,
    "type": "n",
    "model": "m",
    "in": 8,
    "out": 5,
    "hash_ids": [1, 2],
    "api_time": 1.0,
    "think_time": 0.0,
}
SUB_AGENT = {"t": 0, "type": "subagent", "duration_ms": 1000, "tool_tokens": 4, "requests": []}
NO_IDS = ("hash_ids", "not a list of whole numbers")
NOT_A_SUB_AGENT = ("request 1", "a sub-agent needs")


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


def without(request, *names):
    return {name: value for name, value in request.items() if name not in names}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("{", ("line 1", "not valid JSON"), id="a truncated line"),
        pytest.param("[]", ("line 1", "not a JSON object"), id="a list"),
        pytest.param("{}", ("line 1", "not a session"), id="an object without requests"),
        pytest.param("", ("is empty",), id="an empty file"),
        pytest.param(session(REQUEST, block_size=0), ("block_size=0",), id="blocks of no token"),
        pytest.param(
            f"{session(REQUEST)}\n{session(REQUEST, block_size=8)}",
            ("[4, 8]", "all sessions must have the same"),
            id="two sizes of blocks",
        ),
        pytest.param(
            session(REQUEST, 7), ("request 2", "not a JSON object"), id="a number for a request"
        ),
    ],
)
def test_sessions_are_refused_by_line_and_request(tmp_path, text, words):
    check_sessions_are_refused(tmp_path, text, words)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"in": 0, "hash_ids": []}, ("in=0",), id="no input"),
        pytest.param(
            {"out": -1},
            ("out=-1", "not a whole number of tokens, at least 0"),
            id="a negative output",
        ),
        pytest.param(
            {"hash_ids": [1]}, ("1 hash_ids for 2 full blocks of 4 tokens",), id="an id too few"
        ),
        pytest.param({"hash_ids": [1, "2"]}, NO_IDS, id="a text among the ids"),
        pytest.param({"hash_ids": [1, 2**31]}, NO_IDS, id="an id of more than 31 bits"),
        pytest.param({"hash_ids": [-1, 2]}, NO_IDS, id="a negative id"),
        pytest.param({"hash_ids": None}, NO_IDS, id="no ids"),
        pytest.param(
            {"api_time": "1"}, ("api_time='1'", "not a time in seconds"), id="a text for a time"
        ),
        pytest.param({"think_time": -1}, ("think_time=-1",), id="a negative think time"),
    ],
)
def test_requests_of_a_session_are_refused_by_field(tmp_path, changed, words):
    text = session({**REQUEST, **changed})
    check_sessions_are_refused(tmp_path, text, ("request 1", *words))


@pytest.mark.parametrize(
    ("sub_agent", "words"),
    [
        pytest.param(
            {**SUB_AGENT, "t": None}, ("request 1", "t=None", "not a time"), id="no start"
        ),
        pytest.param(without(SUB_AGENT, "duration_ms"), NOT_A_SUB_AGENT, id="no duration"),
        pytest.param(without(SUB_AGENT, "requests"), NOT_A_SUB_AGENT, id="no requests"),
        pytest.param(
            without(SUB_AGENT, "duration_ms", "tool_tokens", "requests"),
            NOT_A_SUB_AGENT,
            id="nothing but a start",
        ),
        pytest.param(
            {**SUB_AGENT, "requests": [{**REQUEST, "t": "x", "in": 4, "hash_ids": [1]}]},
            ("request 1", "of its sub-agent", "t='x'"),
            id="a request of a sub-agent",
        ),
    ],
)
def test_sub_agents_are_refused_by_field(tmp_path, sub_agent, words):
    check_sessions_are_refused(tmp_path, session(sub_agent), words)


def check_sessions_are_refused(folder, text, words):
    check_file_is_refused(
        folder, {"s.jsonl": text}, words, lambda path: AgentSessions(path).rows(None, 0)
    )


RAG = {"timestamp": "1", "input_length": 10, "output_length": 9, "hash_ids": {}, "session_id": "s"}
RAG_PARTS = {
    "1_sys_prompt.jsonl": '{"hash_id": 1, "token_length": 16}',
    "2_passages.jsonl": '{"passage_id": 2, "token_length": 32}',
    "3_history.jsonl": '{"hash_id": 3, "token_length": 8}',
    "4_user_input.jsonl": '{"hash_id": 4, "token_length": 20}',
    "5_web_search.jsonl": '{"hash_id": 5, "token_length": 0}',
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"hash_ids": {"sys_prompt": [7]}}, ("hash id 7",), id="an id of no part"),
        pytest.param({"hash_ids": {"sys_prompt": [True]}}, ("hash id True",), id="a switch"),
        pytest.param({"hash_ids": []}, ("hash_ids is not an object",), id="ids in a list"),
        pytest.param({"timestamp": "x"}, ("timestamp='x'",), id="a word for a time"),
        pytest.param({"input_length": 0}, ("input_length=0",), id="no input"),
    ],
)
def test_ragpulse_requests_are_refused_by_line_and_field(tmp_path, changed, words):
    files = {"0_trace.jsonl": json.dumps({**RAG, **changed}), **RAG_PARTS}
    check_file_is_refused(
        tmp_path, files, ("line 1", *words), lambda path: RagPulseJsonl(path).rows(None, 0)
    )


@pytest.mark.parametrize(
    "part",
    [
        pytest.param({"passage_id": 2, "other_id": 3, "token_length": 32}, id="two ids"),
        pytest.param({"passage_id": "2", "token_length": 32}, id="a text for an id"),
        pytest.param({"passage_id": 2, "token_length": -1}, id="a negative length"),
    ],
)
def test_ragpulse_part_is_refused_by_its_own_file(tmp_path, part):
    files = {
        "2_passages.jsonl": json.dumps(part),
        "0_trace.jsonl": json.dumps(RAG),
        **{name: text for name, text in RAG_PARTS.items() if name != "2_passages.jsonl"},
    }
    check_file_is_refused(
        tmp_path,
        files,
        ("line 1", "not one id and its token_length"),
        lambda path: RagPulseJsonl(str(tmp_path / "0_trace.jsonl")).rows(None, 0),
    )
