"""Agentic coding sessions and logs of benchmark clients: who waits for whom, and what a bad line
says.
"""

import json

import pytest
from refusals import refuses
from trace_files import BENCH

from testbed.traces.agent_sessions import AgentSessions
from testbed.traces.vllm_log import VllmLog


def request(t, tokens, ids, think=0.0, api=1.0, out=5, **more):
    line = {
        "t": t,
        "type": "n",
        "model": "m",
        "in": tokens,
        "out": out,
        "hash_ids": ids,
        "api_time": api,
    }
    return {**line, "think_time": think, **more}


def sub_agent(t, duration_s, requests):
    return {
        "t": t,
        "type": "subagent",
        "duration_ms": 1000 * duration_s,
        "tool_tokens": 4,
        "requests": requests,
    }


def session(*requests, **more):
    return {
        "id": "s",
        "block_size": 4,
        "tool_tokens": 4,
        "system_tokens": 4,
        "requests": requests,
        **more,
    }


TWO = [
    session(
        request(0, 8, [1, 2], api=2.0),
        sub_agent(12.0, 9, [request(0, 5, [7]), request(3, 9, [7, 8], think=2.0)]),
        sub_agent(30.0, 27, [request(0, 4, [7], out=0)]),
        request(20, 13, [1, 2, 3], think=18.0),
        request(25, 16, [1, 2, 3, 4], think=4.0),
        request(40, 18, [1, 2, 3, 4], think=9.0),
    ),
    session(request(0, 8, [1, 2]), request(4, 12, [1, 2, 9], think=3.0)),
]


@pytest.fixture
def read(tmp_path):
    def call(sessions, max_len=None, **options):
        path = tmp_path / "sessions.jsonl"
        path.write_text("\n".join(s if isinstance(s, str) else json.dumps(s) for s in sessions))
        return AgentSessions(str(path), **options).rows(None, 0, max_len)

    return call


def test_session_turns_have_dependencies_think_times_and_content(read):
    rows, part, second = (
        read(TWO),
        1 << 31,
        1 << 32,
    )  # first ids of partial blocks, and of the second session
    assert rows.turns.session.tolist() == [0] * 7 + [1] * 2
    assert rows.turns.after == [(), (0,), (1,), (0,), (0, 2), (4,), (5, 3), (), (7,)]
    # Both sub-agents began a second after the first answer; the first of them ended 8 s before the
    # parent went on.
    assert rows.turns.wait_s.tolist() == [0, 1, 2, 1, 8, 4, 10, 0, 3]
    assert rows.turns.answer_s.tolist() == [2, *[1] * 8]
    assert rows.prompt_len.tolist() == [8, 5, 9, 4, 13, 16, 18, 8, 12]
    assert rows.output_len.tolist() == [5, 5, 5, 1, 5, 5, 5, 5, 5]
    assert (list(rows.prompt_ids), rows.tokens_per_id) == (
        [
            (1, 2),
            (7, part),
            (7, 8, part + 1),
            (7,),
            (1, 2, 3, part + 2),
            (1, 2, 3, 4),
            (1, 2, 3, 4, part + 3),
            (second + 1, second + 2),
            (second + 1, second + 2, second + 9),
        ],
        4,
    )


def test_a_sub_agent_whose_requests_have_times_of_the_session_begins_with_the_first(read):
    chain = [request(3.0, 5, [7], api=1.0), request(6.0, 9, [7, 8], think=2.0, api=2.0)]
    launched = {**sub_agent(2.5, 0, chain), "duration_ms": None, "status": "async_launched"}
    parent = [request(0, 8, [1, 2], api=2.0), request(7.0, 9, [1, 2], think=5.0)]
    after = request(10.0, 13, [1, 2, 3], think=2.0)
    turns = read([session(parent[0], launched, parent[1], after)]).turns
    assert turns.after == [(), (0,), (1,), (0,), (3, 2)]
    assert turns.wait_s.tolist() == [0, 1, 2, 5, 2]


def test_limits_and_defaults_of_times_are_read(read):
    """A sub-agent that ends when the parent goes on is waited for; without a think time it is what
    the clock says.
    """
    plain = [
        {key: one[key] for key in ("t", "in", "out", "hash_ids")}
        for one in (request(0, 4, [0]), request(7, 8, [0, 1], out=0), request(9, 4, [2**31 - 1]))
    ]
    turns = read(
        [session(plain[0], sub_agent(7, 7, [request(0, 4, [5], api=0)]), *plain[1:])]
    ).turns
    assert (turns.after, turns.wait_s.tolist()) == ([(), (0,), (0, 1), (2,)], [0, 0, 0, 2])
    assert turns.answer_s.tolist() == [0, 0, 0, 0]


def test_a_request_without_a_type_is_one_of_the_chains(read):
    plain = [
        {key: value for key, value in one.items() if (key, value) != ("type", "n")}
        for one in TWO[1]["requests"]
    ]
    assert (
        read([{**TWO[1], "requests": plain}]).turns.after
        == read([TWO[1]]).turns.after
        == [(), (0,)]
    )


def test_session_ends_before_its_first_long_request(read):
    rows = read(TWO, max_len=18)
    assert rows.prompt_len.tolist() == [8, 5, 9, 4, 8, 12]
    assert rows.turns.after == [(), (0,), (1,), (0,), (), (4,)]
    within = [
        request(0, 5, [7]),
        request(1, 18, [7, 8, 9, 10]),
        request(2, 4, [7]),
    ]  # a sub-agent ends there, too
    assert read(
        [session(TWO[0]["requests"][0], sub_agent(9, 7, within))], max_len=18
    ).prompt_len.tolist() == [8, 5]
    assert len(read(TWO, num_sessions=1)) == len(read(TWO[:1])) == 7
    empty = [session(request(0, 8, [1, 2], out=0)), *TWO]  # which counts as one token
    assert len(read(empty, max_len=10)) == 1
    refuses(r"sessions\.jsonl: ", read, empty, max_len=9)
    refuses("num_sessions=0: ", read, TWO, num_sessions=0)


def test_short_max_len_and_open_loop_are_refused(read, tmp_path):
    refuses(r"sessions\.jsonl: ", read, TWO, max_len=5)
    refuses("arrivals=sessions", lambda: AgentSessions(str(tmp_path / "sessions.jsonl")).rows(3, 0))


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
    "whole",
    [BENCH, {"benchmarks": [{"requests": {"successful": GUIDELLM, "errored": [{}]}}]}],
    ids=["vllm", "guidellm"],
)
def test_logs_of_both_clients_are_read_alike(tmp_path, whole):
    log = VllmLog(write(tmp_path, whole))
    assert log.read().prompt_len.tolist() == [9, 7]  # in order of arrival
    assert log.read().output_len.tolist() == [1, 3]
    assert [column.tolist() for column in log.times[:3]] == [[0, 0.5], [0.5, 0.75], [0.5, 1.5]]
    assert not log.is_of_engine
    assert log.remarks == ["1 of 3 requests failed: left out, as if they took no time"]


def test_retokenized_lengths_are_replaced_by_the_streams_chunks(tmp_path):
    log = VllmLog(write(tmp_path, {**BENCH, "output_lens": [2, 1, 0], "errors": None}))
    assert log.read().output_len.tolist() == [1, 3]
    assert "output_lens were tokenized again: 2 tokens on average" in log.remarks[0]
    one = {
        "input_lens": [7],
        "output_lens": [100],
        "ttfts": [0.25],
        "itls": [[0.25] * 101],
        "start_times": [10.5],
    }
    log = VllmLog(write(tmp_path, one))
    assert (log.read().output_len.tolist(), log.remarks) == (
        [102],
        [],
    )  # two in a hundred may be more


def test_a_workload_file_adds_hashes_to_a_csv(tmp_path):
    log, workload = tmp_path / "log.csv", tmp_path / "w.jsonl"
    log.write_text(
        "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n33,2,1,2,3\n16,2,0,2,3\n"
    )
    workload.write_text(
        '{"hash_ids": [1, 2, 3], "tokens_per_id": 16}\n{"hash_ids": [1], "tokens_per_id": 16}\n'
    )
    rows = VllmLog(str(log), str(workload)).read()
    assert (rows.prompt_ids, rows.tokens_per_id) == ([(1,), (1, 2, 3)], 16)
    workload.write_text('{"hash_ids": [7]}\n' * 2)
    assert VllmLog(str(log), str(workload)).read().tokens_per_id == 512
    wrong = (
        '{"hash_ids": [1, 2], "tokens_per_id": 16}',
        '{"input_tok_ids": [5]}',
        '{"hash_ids": [], "tokens_per_id": 0}',
        '{"hash_ids": [[1]]}',
    )
    for line in wrong:
        workload.write_text(f"{line}\n" * 2)
        refuses(
            "line 1: the log has 33 token ids, or their hash_ids here",
            VllmLog(str(log), str(workload)).read,
        )
    workload.write_text(
        '{"hash_ids": [1, 2, 3], "tokens_per_id": 16}\n{"hash_ids": [1], "tokens_per_id": 32}\n'
    )
    refuses(r"w\.jsonl, line 2: ", VllmLog(str(log), str(workload)).read)
