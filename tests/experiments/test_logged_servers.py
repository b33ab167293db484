"""From a log to a prediction: planted times found again, the pool that a log implies, doubts."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from refusals import check_words, refuses

from testbed.cost.profile import PROFILES, read_profile
from testbed.experiments.real.importers.known_shapes import gpu_named, model_named
from testbed.experiments.real.validation.deviations import conclude
from testbed.experiments.real.validation.log_replay import LoggedMachine, replay, server_config
from testbed.experiments.real.validation.logged_server import (
    impossible_lengths,
    recurrence,
)
from testbed.experiments.real.validation.profile_fit import (
    carried,
    errors,
    fitted_profile,
    half_time,
    nearest,
    scaled,
)
from testbed.experiments.real.validation.software_fit import Fitted, Problem, fit
from testbed.traces.vllm_log import Times, VllmLog

SYSTEM = ("+system=vllm-v1", "cost=profile")
SMALL = (
    "server.num_blocks=1000",
    "swap_space_gib=0.001",
)  # pools of the toy's tiny blocks take long to make
MANY = [(20 + 7 * i % 90, 1 + 11 * i % 40, 0.004 * i) for i in range(20)]
CROWD = [(40 + 7 * i % 150, 30 + 11 * i % 9, 0.0003 * i) for i in range(60)]


def write_log(path, rows, times=None):
    """A client's CSV of (input, output, arrival) with the times of a simulation, or any."""
    ends = (
        zip(times.first_token_s, times.finish_s, strict=True)
        if times
        else [(r[2] + 1, r[2] + 2) for r in rows]
    )
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["input_tokens", "output_tokens", "arrival_s", "first_token_s", "finish_s"])
        table.writerows(
            [*row, *map(float, moments)] for row, moments in zip(rows, ends, strict=True)
        )
    return str(path)


def simulated(folder, name, rows, profile, *overrides, machine=None):
    """The log that a simulated server would have written."""
    guess = VllmLog(write_log(folder / f"guess-{name}", rows))
    config = server_config([*SYSTEM, f"cost.path={profile}", *overrides])
    return write_log(folder / name, rows, replay(guess, config, machine).times)


def test_log_outside_the_fit_is_reported_as_such(testbed, tmp_path, profile):
    base = (*SMALL, "scheduler=vllm_v1")
    machine = LoggedMachine({0: 9e-3}, 2e-3, 1.25)
    log = simulated(tmp_path, "fitted.csv", MANY[:8], profile, *base, machine=machine)
    other = simulated(tmp_path, "other.csv", MANY[:8], profile, *base)
    words = ("+system=vllm-v1", *base, "--from", profile, "--out", "fitted.json")
    testbed.done("calibrate", "fit", "profile", log, other, *words)
    line = (*SYSTEM, *base, "cost.path=fitted.json")
    _, output, _ = testbed("validate", other, *line)
    _, on_itself, _ = testbed("validate", log, *line)
    assert "fitted.csv;" in output
    assert "fitted.csv;" not in on_itself
    assert "times were fitted on this very log; validate another one" in on_itself


def test_a_profile_is_scaled_to_logs(testbed, tmp_path, profile):
    base, software = (*SMALL, "scheduler=vllm_v1"), ("cost.software.overhead_s=4e-4",)
    machine = LoggedMachine({0: 9e-3}, 2e-3, 1.5)
    rows = {"one.csv": MANY, "two.csv": CROWD}
    logs = [
        simulated(tmp_path, name, rows[name], profile, *base, *software, machine=machine)
        for name in rows
    ]
    reported = testbed.done(
        "calibrate",
        "fit",
        "profile",
        *logs,
        "+system=vllm-v1",
        *base,
        "--from",
        profile,
        "--out",
        "mine.json",
    )
    built, source = read_profile(tmp_path / "mine.json"), read_profile(profile)
    fitted_us = dict(built["sections"]["overhead"]["points"])
    assert fitted_us["iteration"] == pytest.approx(600, rel=0.05)
    assert fitted_us["before_first_token"] == pytest.approx(9000, rel=0.05)
    assert fitted_us["after_last_token"] == pytest.approx(2000, rel=0.05)
    assert built["fingerprint"]["kernel_factor"] == pytest.approx(1.5, rel=0.01)
    for name in ("linear", "decode_attention", "output_head"):
        pairs = zip(
            source["sections"][name]["points"], built["sections"][name]["points"], strict=True
        )
        for before, after in pairs:
            assert after[-1] == pytest.approx(1.5 * before[-1], rel=0.01)
    assert "kernels: 1.500 times as long" in reported
    for log in logs:
        testbed.done("validate", log, *SYSTEM, *base, "cost.path=mine.json", "--within", "3")


@pytest.fixture(scope="module")
def of_h200():
    """The shipped profile of the model on an H200."""
    return nearest(model_named("llama-3.1-8b"), 1, gpu_named("h200"))


def test_the_nearest_profile_is_carried_to_the_model_and_the_data_sheet(of_h200):
    of_a100 = nearest(model_named("llama-3.1-8b"), 1, gpu_named("a100-80gb"))
    assert of_h200["model"]["name"] == of_a100["model"]["name"] == "llama-3.1-8b"
    assert of_h200["gpu"]["name"] == "h200"
    assert of_h200["fingerprint"]["source"] == "measured"
    assert of_a100["gpu"]["name"] == of_a100["fingerprint"]["device"] == "a100-80gb"
    assert of_a100["fingerprint"]["source"] == "derived"


def test_a_profile_without_a_data_sheet_is_not_carried_elsewhere(of_h200):
    fingerprint = {**of_h200["fingerprint"], "device": "Toy"}
    of_toy = {**of_h200, "gpu": None, "fingerprint": fingerprint}
    reason = refuses("--from", carried, of_toy, None, gpu_named("l4"))
    check_words(("Toy", "l4"), reason)
    assert carried(of_toy, None, None)["gpu"] is None
    assert carried({**of_h200, "gpu": None}, None, None)["gpu"]["name"] == "h200"


def test_a_fitted_profile_has_the_software_times_and_the_slowness_of_its_log(of_h200):
    log = str(PROFILES / "h200-opt-13b-tp1.json")  # any file
    fit_of_log = Fitted(
        times_s={"iteration": 5e-4, "after_last": 2e-3},
        factor=1 / 3,
        standard_errors={},
        correlations={},
    )
    fitted = fitted_profile(of_h200, fit_of_log, log)
    assert fitted["fingerprint"]["kernel_factor"] == 0.3333
    overhead_us = dict(fitted["sections"].pop("overhead")["points"])
    assert overhead_us == {
        "before_first_token": 0,
        "after_last_token": 2000,
        "iteration": 500,
        "request": 0,
        "token": 0,
    }
    scaled_sections = scaled(of_h200["sections"], 1 / 3)
    assert {**scaled_sections, "overhead": None} == {**fitted["sections"], "overhead": None}


def test_kernels_of_a_scaled_profile_alone_take_longer(of_h200):
    scaled_sections = scaled(of_h200["sections"], 1 / 3)
    for name, section in of_h200["sections"].items():
        us = [point[-1] for point in section["points"]]
        if name not in ("unequal_lengths", "overhead", "all_reduce", "swap"):
            us = [round(1 / 3 * time_us, 3) for time_us in us]
        assert [point[-1] for point in scaled_sections[name]["points"]] == us, name


def test_a_log_is_halved_where_both_halves_have_enough(tmp_path):
    rows = [(9, 3, float(i)) for i in range(21)]
    log = VllmLog(write_log(tmp_path / "a.csv", rows))  # each ends two seconds after it came
    assert half_time(log) == 11  # when the tenth ends
    real = log.times
    late = Times(
        real.arrival_s, 1.1 * real.first_token_s, 1.1 * real.finish_s, real.output_len
    )  # first tokens at 1...
    for part, mean_errors in (({"until_s": 11}, (60, 10, 32.5)), ({"after_s": 11}, (165, 10, 85))):
        by_metric = {row.metric: row for row in errors(real, late, **part)}
        kinds = ("ttft_s", "tpot_s", "e2e_s")
        assert list(by_metric) == [
            f"{kind}_{what}" for kind in kinds for what in ("mean", "p50", "p90", "p99")
        ]
        assert [by_metric[f"{kind}_mean"].error_percent for kind in kinds] == pytest.approx(
            mean_errors
        )
        assert [by_metric[f"{kind}_p50"].real for kind in kinds] == [1, 0.5, 2]
    few = VllmLog(write_log(tmp_path / "b.csv", rows[:15]))
    refuses("b.csv: 7", half_time, few)


def test_recorded_number_of_blocks_sets_the_pool(testbed, tmp_path, profile):
    log = write_log(tmp_path / "a.csv", MANY)
    meta = {
        "num_gpu_blocks": 0,
        "kv_cache": "fp8",
        "resolved_config": {"cache_config": {"num_gpu_blocks": 77}},
    }
    meta["resolved_config"]["cache_config"]["block_size"] = 16
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    line = (log, *SYSTEM, f"cost.path={profile}", "swap_space_gib=0.001")
    reported = testbed.done("validate", *line)
    check_words(("meta.json", "77", "76"), reported)
    error = testbed.refused("validate", *line, "policy.block_size=32")
    check_words(("meta.json", "block_size 16", "32"), error)


@pytest.mark.parametrize(
    "meta",
    [
        {"num_gpu_blocks": "77"},
        {"num_gpu_blocks": 77.5},
        {"num_gpu_blocks": -1},
        {"num_gpu_blocks": 77, "block_size": "16"},
        {"resolved_config": "none"},
        {"engine_kwargs": ["max_num_seqs"]},
    ],
)
def test_a_server_of_other_types_is_refused_by_its_key(testbed, tmp_path, profile, meta):
    log = write_log(tmp_path / "a.csv", MANY)
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    error = testbed.refused("validate", log, *SYSTEM, f"cost.path={profile}")
    check_words(("meta.json", next(reversed(meta))), error)


SERVED = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192"
RECORDED = {
    "num_gpu_blocks": 77,
    "gpu": "NVIDIA L4",
    "model": "Qwen/Qwen2.5-7B",
    "engine_kwargs": {"max_model_len": 4096, "enable_prefix_caching": False},
}


@pytest.mark.parametrize(
    ("options", "words", "pool"),
    [
        ("", (), ["meta.json: 77 KV blocks"]),
        (" --num-gpu-blocks-override 990", (), ["says 77 KV blocks, simulated with 990"]),
        ("", ("server.num_blocks=991",), ["says 77 KV blocks, simulated with 991"]),
    ],
)
def test_a_log_s_own_server_goes_before_what_a_command_leaves(
    testbed, tmp_path, options, words, pool
):
    log = write_log(tmp_path / "a.csv", MANY)
    (tmp_path / "meta.json").write_text(json.dumps(RECORDED))
    code, reported, _ = testbed(
        "validate", log, "--from-vllm", SERVED + options, "gpu=h100-80gb", *words
    )
    assert code == 0
    others = [
        "meta.json says NVIDIA L4, simulated with h100-80gb",
        "meta.json says Qwen/Qwen2.5-7B, simulated with llama-3.1-8b",
        "meta.json says max_model_len 4096, simulated with 8192",
        "meta.json says enable_prefix_caching False, simulated with a prefix cache",
    ]
    check_words([*pool, *others], reported)


def test_a_pool_of_groups_is_not_given_in_a_log_s_blocks(testbed, tmp_path):
    log = write_log(tmp_path / "a.csv", MANY)
    (tmp_path / "meta.json").write_text(json.dumps(RECORDED))
    of_groups = "vllm serve google/gemma-3-12b-it --max-model-len 8192"
    code, reported, _ = testbed("validate", log, "--from-vllm", of_groups, "gpu=h100-80gb")
    assert code == 0
    assert "says 77 KV blocks, simulated with the 43.77 GiB" in reported


def test_a_pool_given_in_gib_is_named_as_such(testbed, tmp_path):
    log = write_log(tmp_path / "a.csv", MANY)
    reported = testbed.done("validate", log, "model=opt-13b")
    assert "taken: 983 of 16 tokens, the 12.00 GiB of server.kv_memory_gib" in reported


def test_blocks_of_a_pool_of_groups_are_of_all_layers(tmp_path):
    words = ("+system=vllm-v1", "model=gemma-3-12b", "gpu=h100-80gb")
    config = server_config(words)
    replayed = replay(VllmLog(write_log(tmp_path / "a.csv", MANY)), config)
    assert replayed.num_blocks == config.server.kv_slots(config.model, 16) // 16


def test_a_machine_s_front_end_and_slowness_come_on_top_of_its_engine(tmp_path, profile):
    log = VllmLog(write_log(tmp_path / "a.csv", [(20, 1, 0.0), (30, 2, 0.01), (224, 17, 0.02)]))
    config = server_config([*SYSTEM, *SMALL, f"cost.path={profile}"])
    replayed = replay(log, config, LoggedMachine({0: 0.5}, 0.25, 2.0))
    times, engine = replayed.times, replayed.engine_times
    assert times.arrival_s == pytest.approx([0, 0.01, 0.02])
    assert times.first_token_s - 2 * engine.first_token_s == pytest.approx(0.5)
    assert times.finish_s - 2 * engine.finish_s == pytest.approx(
        [0.5, 0.75, 0.75]
    )  # one has no last token of its own
    # They have 2, 2 and 15 blocks; from 95% of the pool on, memory counts as filled.
    for num_blocks, preemptions, said in ((21, 0, ["90%"]), (20, 0, []), (21, 1, [])):
        lines = "".join(
            conclude(
                log, config, replace(replayed, num_blocks=num_blocks, preemptions=preemptions), {}
            )
        )
        assert re.findall("used at most (.*) of the pool, and none was preempted", lines) == said
    log.meta["preemptions"] = 3  # of a server that the simulated one is not
    lines = "".join(conclude(log, config, replace(replayed, num_blocks=21, preemptions=0), {}))
    assert "the log has 3 preemptions, the simulation none" in lines
    assert "none was preempted" not in lines


@pytest.mark.parametrize("wait_s", [0.01, 10.0])
def test_a_log_s_server_that_fell_behind_is_named(tmp_path, profile, wait_s):
    """Sixty requests in 6 s, whose first tokens come at once or after the last arrival."""
    arrival_s = np.arange(60) / 10
    first_s = arrival_s + wait_s
    times = Times(arrival_s, first_s, first_s + 1, np.full(60, 5))
    rows = [(20, 5, arrival) for arrival in arrival_s.tolist()]
    log = VllmLog(write_log(tmp_path / "a.csv", rows, times))
    config = server_config([*SYSTEM, *SMALL, f"cost.path={profile}"])
    lines = "".join(conclude(log, config, replay(log, config), {}))
    assert ("in the log 0 of 10" in lines) == (wait_s > 6)


def test_a_front_end_takes_longer_the_more_requests_decode_beside():
    """Three run from 1, 2 and 3 s on: beside the third are two, twice as many as were measured."""
    engine = Times(np.zeros(3), np.array([1.0, 2.0, 3.0]), np.full(3, 9.0), np.full(3, 5))
    machine = LoggedMachine({0: 1.0, 1: 1.5})
    assert machine.before_first_of(engine) == pytest.approx([1.0, 1.5, 2.0])


def test_late_requests_are_left_out_and_kernels_may_be_faster_than_the_profile(tmp_path, profile):
    base, rows = (*SMALL, "scheduler=vllm_v1"), MANY[:6]
    log = VllmLog(simulated(tmp_path, "a.csv", rows, profile, *base))
    config = server_config([*SYSTEM, *base, f"cost.path={profile}"])
    times = log.times
    late = times._replace(finish_s=times.finish_s + np.arange(6) // 5)  # the last one by a second
    shifted = VllmLog(write_log(tmp_path / "b.csv", rows, late))
    last_s = float(shifted.times.finish_s[-1])
    problems = [Problem(shifted, config, end_s) for end_s in (last_s, last_s - 0.1)]
    for problem in problems:
        fit(problem)
    assert (problems[0].best > 0.1, problems[1].best < 1e-6) == (True, True)
    slow = read_profile(tmp_path / "profile.json")
    slow["sections"] = scaled(slow["sections"], 3)
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    config = server_config([*SYSTEM, *base, f"cost.path={tmp_path / 'slow.json'}"])
    problem = Problem(log, config)
    assert problem.progress() == "fitting: 0 simulations"
    assert fit(problem).factor == pytest.approx(1 / 3, rel=0.01)
    assert problem.progress().endswith(" simulations, 0.0% of a request's times remain")


RECURRING = np.array([10, 20, 30, 40, 50, 60, 70, 80] * 3)  # every eighth is as long


def test_lengths_that_recur_are_noticed():
    assert recurrence(RECURRING) == recurrence(RECURRING[:16]) == (8, 1.0)
    assert recurrence(np.append(RECURRING[:17], 99)) == (8, 0.9)  # all but one of ten
    assert recurrence(np.append(RECURRING[:16], [98, 99])) is None
    assert recurrence(RECURRING.clip(max=70)) is None  # seven lengths
    assert recurrence(np.full(24, 512)) is None


def test_prompts_that_recur_are_refused_with_a_prefix_cache_until_a_file_has_them(
    testbed, tmp_path, profile
):
    rows = [(int(length), 5, 0.1 * i) for i, length in enumerate(RECURRING)]
    again = write_log(tmp_path / "again.csv", rows)
    line = ("validate", again, *SYSTEM, *SMALL, f"cost.path={profile}")
    for cache in ([], ["policy=grouped_caching"], ["policy=tiered"]):
        error = testbed.refused(*line, *cache)
        check_words(("100%", "8 requests"), error)
    testbed.done(*line, "policy=paged")
    prompts = [json.dumps({"input_tok_ids": [1] * int(length)}) for length in RECURRING]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    testbed.done(*line, "--workload", "prompts.jsonl")


def test_more_tokens_than_a_request_that_decoded_all_the_while_are_noticed():
    inside = Times(
        arrival_s=np.zeros(2),
        first_token_s=np.array([1.0, 2.0]),
        finish_s=np.array([5.0, 4.0]),
        output_len=np.array([10, 20]),
    )
    assert impossible_lengths(inside) == 1  # 20 tokens while the other had 10
    first_token_s = np.arange(50.0).clip(max=48)
    twins = Times(
        arrival_s=np.zeros(50),
        first_token_s=first_token_s,
        finish_s=first_token_s + 1,
        output_len=np.full(50, 10),
    )
    twins.output_len[-1] = 20
    assert impossible_lengths(twins) == 0  # one in fifty may be
    assert impossible_lengths(twins.take(slice(1, 50))) == 1


def test_all_reduces_without_a_measurement_are_named(tmp_path, testbed, profile):
    whole = json.loads((tmp_path / "profile.json").read_text())
    (tmp_path / "profile.json").write_text(json.dumps({**whole, "num_gpus": 2}))
    log = write_log(tmp_path / "a.csv", MANY)
    line = ("validate", log, *SYSTEM, *SMALL, f"cost.path={profile}")
    assert "all-reduces were not measured: a ring over 100 GB/s stands in" in testbed(*line)[1]
