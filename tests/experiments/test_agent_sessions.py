"""Agent sessions from the command line: a closed loop with prefix caches, and what does not go with
it.
"""

import json

import pytest

MACHINE = ["model=llama-3-8b", "policy=prefix_caching", "policy.block_size=64", "outputs=summary"]


@pytest.fixture
def sessions(tmp_path):
    """Four sessions of five requests, each prompt with two blocks more than the one before."""
    lines = []
    for number in range(4):
        requests = [
            {
                "t": 10.0 * i,
                "type": "n",
                "in": 640 + 128 * i,
                "out": 8,
                "hash_ids": list(range(10 + 2 * i)),
                "think_time": 2.0,
                "api_time": 1.0,
            }
            for i in range(5)
        ]
        lines.append(json.dumps({"id": number, "block_size": 64, "requests": requests}))
    (tmp_path / "sessions.jsonl").write_text("\n".join(lines))
    return [
        "trace=agent_sessions",
        "trace.path=sessions.jsonl",
        "arrivals=sessions",
        "arrivals.at_once=2",
    ]


def test_closed_loop_hits_earlier_turns_of_the_session(testbed, tmp_path, sessions):
    output = testbed.done("run", *MACHINE, *sessions, "hydra.run.dir=out")
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["requests"]["finished"] == 20
    counts = summary["counters"]
    assert counts["hit_blocks"] == 4 * sum(10 + 2 * i for i in range(4))
    assert summary["simulated_s"] > 2 * (2 * 4)
    assert "found" in output


@pytest.mark.parametrize(
    ("more", "culprit"),
    [
        (["stop_at_latency=1"], "stop_at_latency"),
        (["arrivals.at_once=0"], "at_once"),
        (["arrivals=poisson"], "arrivals=sessions"),
        (["trace=sharegpt", "~trace.path"], "whole trace"),
        (["trace.num_sessions=0"], "num_sessions"),
    ],
)
def test_conflicting_session_options_are_refused(testbed, tmp_path, sessions, more, culprit):
    arguments = [
        session
        for session in sessions
        if session.partition("=")[0] not in {two.partition("=")[0] for two in more}
    ]
    if "trace=sharegpt" in more:
        arguments, more = ["arrivals=sessions"], more[:1]
    if "arrivals=poisson" in more:
        arguments = sessions[:2]
    assert culprit in testbed.refused("run", *MACHINE, *arguments, *more, "hydra.run.dir=out")
    assert not (tmp_path / "out").exists()


def test_study_without_its_trace_file_is_refused(testbed):
    assert "--lengths agent_sessions=FILE" in testbed.refused(
        "reproduce", "agent_sessions", "--jobs", "1"
    )
