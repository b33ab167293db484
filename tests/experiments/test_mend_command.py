"""`testbed mend`: a server as it is, its changes on the same seeds, verdicts by differences."""

import json

import pytest
from test_json_answers import check

from testbed.experiments.cli.json_answers import MendAnswer
from testbed.experiments.mend.changes import Change
from testbed.experiments.mend.trials import (
    EQUAL,
    FEWER,
    MENDS,
    OTHER_COSTS,
    TRADES,
    UNKNOWN,
    VERDICTS,
    WORSE,
    Tried,
)

SERVER = "vllm serve meta-llama/Llama-3.1-8B-Instruct --num-gpu-blocks-override"
LOAD = (
    "gpu=h100-80gb",
    "trace=guidellm",
    "trace.prompt_tokens=1500",
    "trace.output_tokens=300",
    "trace.output_tokens_stdev=150",
    "arrivals.rate=6",
    "arrivals.duration_s=15",
)


@pytest.fixture
def mended(testbed):
    """Call `testbed mend` with so many blocks: its exit code and its answer."""

    def call(blocks, *words):
        line = ("mend", f"{SERVER} {blocks} --max-model-len 8192", *LOAD, *words)
        code, printed, error = testbed(*line, "--json", "--quiet")
        assert error == ""
        answer = json.loads(printed)
        check(answer, MendAnswer, "mend")
        return code, answer

    return call


def numbers(change):
    return {row["quantity"]: row for row in change["numbers"]}


def test_a_small_pool_is_mended_by_a_larger_one(testbed, mended):
    code, answer = mended(2000, "--seeds", "5")
    assert code == 0
    assert answer["preempts"]
    by_name = {change["change"]: change for change in answer["changes"]}
    assert by_name["--num-gpu-blocks-override 3000"]["verdict"] == MENDS
    ranks = [VERDICTS.index(change["verdict"]) for change in answer["changes"]]
    assert ranks == sorted(ranks)
    ours = numbers(answer["server"])
    for change in answer["changes"]:
        for name, row in numbers(change).items():
            assert row["difference"] == pytest.approx(row["mean"] - ours[name]["mean"], abs=1e-9)
    run = testbed("run", "--from-vllm", f"{SERVER} 2000 --max-model-len 8192", *LOAD, "--json")
    summary = json.loads(run[1])["summary"]
    one = mended(2000, "--seeds", "1")[1]["server"]
    assert numbers(one)["req/s"]["mean"] == summary["throughput"]["requests_per_s"]


def test_a_change_that_fails_has_no_verdict(mended):
    code, answer = mended(3000, "--seeds", "1", "gpu=l4")
    assert answer["preempts"]
    assert code == 1  # one seed separates nothing
    assert "vLLM does not start" in answer["failed"]["--num-gpu-blocks-override 4500"]
    assert all("4500" not in change["change"] for change in answer["changes"])


def test_a_server_that_preempts_nothing_needs_no_change(mended):
    code, answer = mended(20000, "--seeds", "1")
    assert (code, answer["changes"], answer["preempts"]) == (0, [], False)


def test_a_server_that_cannot_run_is_refused(testbed):
    odd = f"{SERVER} 2000 --tensor-parallel-size 3"
    assert "vLLM does not start" in testbed.no("mend", odd, "gpu=h100-80gb")
    seeded = testbed.refused("mend", f"{SERVER} 1500", "gpu=h100-80gb", "seed=3")
    assert "--seeds" in seeded


def summary(preemptions, latency_s, costs="a", rejected=0):
    """The part of an hour's run that a verdict reads."""
    return {
        "run": {"cost": f"auto_cost ({costs})", "cost_error": "small"},
        "requests": {"rejected": rejected},
        "preemptions": {"swap": 0, "recompute": preemptions},
        "simulated_s": 3600.0,
        "e2e_s": {"mean": latency_s},
    }


def tried(*runs, **more):
    return Tried(Change("x"), [summary(*run, **more) for run in runs])


AS_IT_IS = tried((100, 5.0), (110, 5.1), (120, 5.2))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        pytest.param(tried((1, 4.0), (2, 4.1), (3, 4.2)), MENDS, id="fewer and faster"),
        pytest.param(tried((0, 8.0), (0, 8.1), (0, 8.3)), TRADES, id="none and later"),
        pytest.param(tried((90, 5.0), (99, 5.1), (109, 5.2)), FEWER, id="a tenth fewer"),
        pytest.param(tried((0, 5.0), (300, 5.1), (80, 5.2)), UNKNOWN, id="scattered"),
        pytest.param(AS_IT_IS, EQUAL, id="the same runs"),
        pytest.param(tried((200, 5.0), (210, 5.1), (219, 5.2)), WORSE, id="more"),
        pytest.param(tried((99, 9.0), (110, 9.1), (121, 9.3)), WORSE, id="later for nothing"),
        pytest.param(tried((1, 1.0), (1, 1.0), (1, 1.0), rejected=1), WORSE, id="rejects"),
        pytest.param(tried((1, 1.0), (1, 1.0), (1, 1.0), costs="b"), OTHER_COSTS, id="costs"),
    ],
)
def test_verdicts_follow_from_the_differences(change, verdict):
    assert change.verdict(AS_IT_IS) == verdict
