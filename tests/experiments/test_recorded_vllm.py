"""Logs of a vLLM that `testbed gpu record` writes, and how validate reads them."""

import json

import numpy as np
import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.core.request import Request, Rows, Workload
from testbed.engine.arrivals import BoundedWorkload
from testbed.experiments.real.vllm_engine import recorded_log as recorder
from testbed.experiments.real.vllm_engine.asked import plain_requests, token_ids, write_contents
from testbed.experiments.real.vllm_engine.recorded_log import add_preemptions, write_meta
from testbed.traces.vllm_log import VllmLog

FACTS = {
    "num_gpu_blocks": 500,
    "block_size": 16,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 4096,
}
ABOUT = {"vllm": "0.20.2", "device": "NVIDIA H100 80GB HBM3", "host": "a host"}


def row(number, arrival, queued, first, last, output=10, **more):
    return {
        "request_id": f"r{number}",
        "input_toks": 20,
        "output_toks": output,
        "arrival_time": arrival,
        "queued_ts": queued,
        "first_token_ts": first,
        "last_token_ts": last,
        **more,
    }


def write_rows(folder, rows):
    (folder / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(folder / "requests.jsonl")


def test_prompts_with_the_same_contents_have_the_same_tokens():
    first = Request(0, 0, 40, 5, prompt_ids=(7, 8, 9), tokens_per_id=16)
    second = Request(1, 0, 33, 5, prompt_ids=(7, 8, 3), tokens_per_id=16)
    tokens, others = token_ids(first, 0), token_ids(second, 0)
    assert (len(tokens), len(others)) == (40, 33)
    assert tokens[:32] == others[:32]
    assert tokens[32] != others[32]


def test_prompts_without_contents_have_nothing_in_common():
    first, second = (token_ids(Request(i, 0, 40, 5), 0) for i in range(2))
    assert set(first) != set(second)
    assert first == token_ids(Request(0, 0, 40, 5), 0)


def test_what_vllm_cannot_be_asked_for_is_refused():
    none, some = Rows(np.array([], int), np.array([], int)), Rows(np.array([4]), np.array([4]))
    for key, workload in (
        ("the workload", Workload(none, np.array([], int))),
        ("workload.num_seqs", Workload(some, np.array([0]), num_seqs=2)),
        ("arrivals", BoundedWorkload(some, np.array([0]), max_in_flight=1)),
    ):
        refuses(f"^{key}: ", plain_requests, workload)


def test_a_recorded_folder_is_what_validate_reads(testbed, tmp_path):
    """Of two requests the second is preempted once, under the longer name that vLLM gives it."""
    rows = [row(1, 100.2, 5.25, 5.4, 5.8), row(0, 100.0, 5.0, 5.1, 5.5)]
    write_rows(tmp_path, rows)
    (tmp_path / "preempted.csv").write_text("request_id,preemptions\nr1-9f3c,1\n")
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    (tmp_path / "machine.json").write_text(json.dumps(ABOUT))
    add_preemptions(tmp_path)
    write_meta(tmp_path, "vllm serve m")
    log = VllmLog(str(tmp_path / "requests.jsonl"))
    assert log.preemptions == 1
    words = ("+system=vllm-v1", "policy=paged", "policy.block_size=16", "policy.watermark=0")
    limits = ("scheduler.max_num_seqs=64", "scheduler.max_num_batched_tokens=2048")
    answer = json.loads(
        testbed.done(
            "validate", log.path, *words, *limits, "model=llama-3.1-8b", "server=h200", "--json"
        )
    )
    errors = {error["metric"]: error for error in answer["errors"]}
    assert errors["preemptions"]["real"] == 1
    assert errors["preemptions"]["simulated"] == 0
    assert any("500 KV blocks" in note for note in answer["notes"])


def test_a_vllm_that_ran_out_of_time_leaves_no_log_to_read(tmp_path, monkeypatch):
    """It says so and ends well; what it has served is its warm-up."""

    def out_of_time(_python, _plan, folder, _limit_s):
        write_rows(folder, [row(0, 100.0, 5.0, 5.1, 5.5, wave="warm-up")])
        (folder / "plan.json").touch()
        (folder / "preempted.csv").write_text("request_id,preemptions\n")

    monkeypatch.setattr(recorder, "check_installed", lambda python: "0.20.2")
    monkeypatch.setattr(recorder, "run_plan", out_of_time)
    workload = Workload(Rows(np.array([20]), np.array([10])), np.array([0]))
    with pytest.raises(InputError, match="served 0 of 1 requests within 420 s"):
        recorder.record("vllm serve m", workload, "python", tmp_path / "out", 420)
    assert not (tmp_path / "out" / "meta.json").exists()


def test_arrivals_are_the_clients_with_the_clocks_set_by_the_fastest(tmp_path):
    """The second request waited 0.05 s longer until the engine took it in than the first."""
    rows = [row(0, 100.0, 5.0, 5.1, 5.5), row(1, 100.2, 5.25, 5.4, 5.8)]
    times = VllmLog(write_rows(tmp_path, rows)).times
    assert times.arrival_s == pytest.approx([0.0, 0.2])
    assert times.ttft_s == pytest.approx([0.1, 0.2])


def test_without_the_clients_clock_requests_arrive_when_they_are_queued(tmp_path):
    rows = [row(0, 100.0, 5.0, 5.1, 5.5), row(1, 100.2, 5.25, 5.4, 5.8)]
    del rows[0]["arrival_time"]
    times = VllmLog(write_rows(tmp_path, rows)).times
    assert times.arrival_s == pytest.approx([0.0, 0.25])


@pytest.mark.parametrize(
    "wrong", [{"preemptions": -1}, {"preemptions": 1.5}, {"arrival_time": "x"}]
)
def test_wrong_counts_and_clocks_are_refused(tmp_path, wrong):
    path = write_rows(tmp_path, [row(0, 100.0, 5.0, 5.1, 5.5) | wrong])
    with pytest.raises(InputError, match=next(iter(wrong))):
        VllmLog(path).read()


def test_contents_are_kept_where_they_are_known(tmp_path):
    path = tmp_path / "workload.jsonl"
    write_contents(path, [Request(0, 0, 4, 4)])
    assert not path.exists()
    write_contents(path, [Request(0, 0, 40, 5, prompt_ids=(7, 8, 9), tokens_per_id=16)])
    assert json.loads(path.read_text()) == {"tokens_per_id": 16, "hash_ids": [7, 8, 9]}


def loaded_log(folder, count=30):
    """Requests that come each 50 ms and take half a second."""
    arrivals = np.arange(count) * 0.05
    rows = [
        row(i, 100 + at, 5 + at, 5.05 + at, 5.5 + at, preemptions=0)
        for i, at in enumerate(arrivals.tolist())
    ]
    return write_rows(folder, rows)


SERVER = ("+system=vllm-v1", "policy=paged", "policy.block_size=16", "policy.watermark=0")


def test_the_interval_of_a_figure_has_the_figure_in_it(testbed, tmp_path):
    words = (*SERVER, "model=llama-3.1-8b", "server=h200", "server.num_blocks=400")
    answer = json.loads(
        testbed.done("validate", loaded_log(tmp_path), *words, "--sensitivity", "--json")
    )
    simulated = {error["metric"]: error["simulated"] for error in answer["errors"]}
    intervals = {each["metric"]: each for each in answer["intervals"]}
    for metric in ("ttft_s_mean", "tpot_s_mean", "e2e_s_mean", "preemptions"):
        assert intervals[metric]["lowest"] <= simulated[metric] <= intervals[metric]["highest"]
    latency = intervals["e2e_s_mean"]
    assert latency["highest"] / latency["lowest"] > 1.05  # costs alone move it by 6%


@pytest.mark.parametrize(("gpu", "has_tested_error"), [("h100-80gb", True), ("h200", False)])
def test_costs_that_say_their_error_give_an_interval_unasked(
    testbed, tmp_path, gpu, has_tested_error
):
    words = (*SERVER, "model=llama-3.1-8b", f"server={gpu}", "server.num_blocks=400")
    answer = json.loads(testbed.done("validate", loaded_log(tmp_path, 5), *words, "--json"))
    assert bool(answer["intervals"]) is has_tested_error
    assert ("at sizes left out launches" in answer["notes"][0]) is has_tested_error


def test_moved_arrivals_stay_within_10_ms_and_in_order(tmp_path):
    from testbed.experiments.real.validation.log_sensitivity import MovedLog

    log = VllmLog(loaded_log(tmp_path))
    moved = MovedLog(log, seed=3)
    apart = np.diff(moved.times.arrival_s) - np.diff(log.times.arrival_s)
    assert 0 < np.abs(apart).max() <= 0.02
    assert (np.diff(moved.times.arrival_s) >= 0).all()
    assert moved.read().arrival_s.tolist() == moved.times.arrival_s.tolist()
    assert MovedLog(log, seed=3).times.arrival_s.tolist() == moved.times.arrival_s.tolist()
    assert len(list(moved.read().prompt_len)) == len(log.read())
