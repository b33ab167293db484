"""The error of a vLLM's profile at sizes left out, and the intervals made of it."""

import gzip
import json
import re
from dataclasses import replace
from math import hypot
from unittest.mock import patch

import numpy as np
import pandas as pd
import planted_vllm as planted
import pytest
from refusals import refuses
from tiny import OneMillisecond

from testbed.core.errors import InputError
from testbed.core.request import Rows, Workload
from testbed.core.shapes import read_model
from testbed.cost.host_drift import drift_of_runs
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile
from testbed.experiments.real.vllm_engine.front_end_times import front_end_section
from testbed.experiments.real.vllm_engine.host_speed import slowness
from testbed.experiments.real.vllm_engine.left_out_sizes import left_out, table, table_of
from testbed.experiments.real.vllm_engine.logged_steps import read_steps
from testbed.experiments.real.vllm_engine.sweep_profile import Machine, profile_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.studies.predictions import predicted
from testbed.experiments.studies.pressure_curve import _names, measured
from testbed.run import cost_words
from testbed.run.machine import cost_of
from testbed.run.parts import Part
from testbed.run.simulate import run
from testbed.study import sensitivity
from testbed.study.cost_spread import (
    COST_ERROR,
    OF_OTHER_HOSTS,
    REPLICATIONS,
    RESAMPLINGS,
    draws,
    replications,
    rule,
    spread_of,
)

MODEL = read_model("llama-3.1-8b")
SHIPPED = "vllm-0.20/h100-llama-3.1-8b-tp1"
WORDS = ["+system=vllm-v1", "model=llama-3.1-8b", "server=h100-80gb", "trace=random"]


def test_planted_launches_are_predicted_at_sizes_left_out(tmp_path):
    planted.sweeps().write(tmp_path)
    machine = Machine(MODEL, 1, planted.SIZES, None, {"source": "measured"})
    rows = left_out(read_steps(tmp_path), machine)
    assert rows.decodes.nunique() > 1
    assert (rows.predicted / rows.real - 1).abs().median() < 0.02


def test_a_table_of_left_out_sizes_has_every_form_and_the_repeats(tmp_path):
    steps, machine = planted_sweeps(tmp_path)
    rows = list(table(steps, machine))
    medians = {row[1]: float(row[3]) for row in rows if row[0] == "prompts among decodes"}
    assert medians["the profile"] <= 2 < medians["3 ms an iteration"]
    assert medians["repeats of the kind at another time"] == 0
    assert {row[0] for row in rows} == {"prompts among decodes", "decodes alone", "prompts alone"}


def test_another_hosts_profile_is_off_by_its_launches_alone(tmp_path):
    steps, machine = planted_sweeps(tmp_path)
    profile = profile_of(steps, machine)
    errors = {row[0]: float(row[3]) for row in table_of(profile, steps, machine)}
    others = {row[0]: float(row[3]) for row in table_of(scaled(profile, 1.5), steps, machine)}
    assert errors["prompts among decodes"] < 2
    assert others["prompts among decodes"] > 10
    assert others["decodes alone"] == errors["decodes alone"] < 2
    sections = {key: part for key, part in profile["sections"].items() if "launch_" not in key}
    with pytest.raises(InputError, match="no launches of a host"):
        list(table_of({**profile, "sections": sections}, steps, machine))
    elsewhere = {**profile, "fingerprint": {**profile["fingerprint"], "device": "another"}}
    refuses("is of another", lambda: list(table_of(elsewhere, steps, machine)))


def scaled(profile, factor):
    """With launches so many times as long."""
    sections = {
        name: {**part, "points": [[*row[:-1], factor * row[-1]] for row in part["points"]]}
        if name.startswith("launch_")
        else part
        for name, part in profile["sections"].items()
    }
    return {**profile, "sections": sections}


def planted_sweeps(folder):
    sweeps = planted.sweeps()
    planted.add_prompts_among_decodes(sweeps)
    sweeps.write(folder)
    return read_steps(folder), Machine(MODEL, 1, planted.SIZES, None, {"source": "measured"})


def test_a_host_that_slows_down_shows_it_in_the_schedulers_times():
    count, decodes = 400, 100
    slow = np.where(np.arange(count) < 200, 1.0, 1.6)
    start = np.arange(count) * 0.01
    table = pd.DataFrame({
        "prompts": 0, "decodes": decodes, "schedule_start_s": start,
        "schedule_end_s": start + slow * 1e-3, "result_s": start, "updated_s": start + slow * 5e-4,
    })  # fmt: skip
    found = slowness(table)
    assert found[300] / found[100] == pytest.approx(1.6, rel=0.03)
    assert (slowness(table.drop(columns="updated_s")) == 1).all()


def test_costs_are_varied_in_launches_and_in_computing_apart():
    cost = ProfileCost(MODEL, None, read_profile(SHIPPED))
    work = Work(32, 32 * 500, 500)
    slower = cost.varied(launches=1.5, computing=1.0)
    assert slower.launch(32, 1, 200).whole_ps == pytest.approx(
        1.5 * cost.launch(32, 1, 200).whole_ps, rel=1e-6
    )
    assert slower.iteration(work) == cost.iteration(work)
    longer = cost.varied(launches=1.0, computing=1.1)
    assert longer.iteration(work) == pytest.approx(1.1 * cost.iteration(work), rel=1e-6)
    assert longer.launch(32, 1, 200) == cost.launch(32, 1, 200)


def test_a_slow_moment_of_the_host_delays_a_first_token_and_replications_begin_elsewhere():
    """A single prompt, at once: a host that is slow in the first 3 of 6 s delays it."""
    profile = read_profile(SHIPPED)
    points = [[0, 2.0], [3000, 0.5]]
    slow_first = {"axes": ["moment_ms"], "columns": ["us"], "note": "", "points": points}
    prompt = Workload(Rows(np.array([100]), np.array([5])), np.zeros(1, dtype=np.int64))
    costs = [
        ProfileCost(MODEL, None, {**profile, "sections": {**profile["sections"], **more}})
        for more in ({}, {"launch_slowness": slow_first})
    ]
    config = replace(configured([*WORDS, "outputs=summary"]), trace=Part(prompt))
    alike, slow = (replace(config, cost=Part(cost)) for cost in costs)
    begun = list(replications(slow))
    assert len(begun) == REPLICATIONS
    usual, *found = (run(each).summary["ttft_s"]["mean"] for each in (alike, *begun))
    assert found[:3] == [found[0]] * 3  # begun at 0, 1.2 and 2.4 s
    assert found[0] > usual > found[3] == found[4]
    assert list(replications(alike)) == [alike]
    of_seeds = [run(replace(slow, seed=seed)).summary["ttft_s"]["mean"] for seed in range(5)]
    assert set(of_seeds) == set(found)  # each seed begins at a moment of its own
    assert run(replace(begun[0], seed=2)).summary["ttft_s"]["mean"] == found[0]
    assert next(draws(replace(slow, seed=2))).cost.slowness.is_begun
    with patch.object(sensitivity, "draws", lambda _: ()):
        prediction = predicted(slow, lambda summary, _: {"ttft": summary["ttft_s"]["mean"]})
    lowest, highest = (prediction[end]["ttft"] for end in ("lowest", "highest"))
    assert (lowest, highest) == (found[3], found[0])


def test_a_profile_of_ones_own_is_off_by_what_its_sweeps_say_and_one_that_ships_by_more(tmp_path):
    profile = read_profile(SHIPPED)
    own = tmp_path / "own.json"
    own.write_text(json.dumps(profile))
    of_own = spread_of(ProfileCost(MODEL, None, read_profile(own)))
    of_sizes = profile["fit"]["left_out"]["launches"]
    assert of_own.launches == pytest.approx(hypot(of_sizes, drift_of_runs({})))
    assert of_own.launches < OF_OTHER_HOSTS
    assert "not known" in str(of_own)
    shipped = configured(WORDS)
    assert f"launches {OF_OTHER_HOSTS:.1%} between hosts ({of_sizes:.1%} " in rule(shipped)
    assert "between hosts" not in str(of_own)
    drawn = list(draws(shipped))
    assert len(drawn) == len({draw.seed for draw in drawn}) == RESAMPLINGS
    assert all(draw.cost is not None for draw in drawn)


def test_costs_that_say_nothing_of_their_error_are_moved_by_3_percent():
    config = replace(configured(WORDS), cost=Part(OneMillisecond()))
    assert " 3% up and down" in rule(config)
    assert {draw.slowness for draw in draws(config)} == {0.97, 1.0, 1.03}


@pytest.mark.parametrize("gpu", ["h200", "l40s", "rtx-pro-6000", "b200"])
@pytest.mark.parametrize("cost", ["cost=analytic", "model=qwen3-8b"])
def test_derived_costs_are_moved_by_the_largest_median_that_their_answer_says(gpu, cost):
    config = configured(["+system=vllm-v1", "model=llama-3.1-8b", f"server={gpu}", cost])
    said = cost_words.tested(cost_of(config), config.model, config.server)
    of_profiles = said.partition(cost_words.served_loads())[0]
    medians = [int(percent) for percent in re.findall(r"latency (\d+)%", of_profiles)]
    error = cost_words.left_out_error(cost_of(config), config.server)
    assert 100 * error == pytest.approx(max(medians), abs=0.5)
    moved = max(error, COST_ERROR)  # measured costs, which they are derived from, have that
    assert {draw.slowness for draw in draws(config)} == {1 - moved, 1.0, 1 + moved}


def test_the_front_end_is_longer_beside_decodes_without_the_wait_for_the_next_plan(tmp_path):
    waits = [0.0, 0.0, *(0.006 * i / 20 for i in range(1, 19))]
    rows = [
        {"wave": wave, "output_toks": 1, "asked_s": 1.0, "queued_ts": 1.001 + busy * wait,
         "first_token_ts": 1.02, "first_s": 1.02 + back, "last_token_ts": 1.02,
         "last_s": 1.02 + back}
        for wave, back, busy in (("prompts", 0.001, 0), ("prompts among 128 decodes", 0.009, 1))
        for wait in waits
    ]  # fmt: skip
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = {load: us for _, load, us in front_end_section(tmp_path)["points"]}
    assert points == pytest.approx({0: 2000, 128: 10000}, abs=1)


def test_sweeps_without_the_clients_times_have_no_front_end(tmp_path):
    assert front_end_section(tmp_path) is None
    (tmp_path / "requests.jsonl").write_text('{"wave": "prompts", "output_toks": 1}\n')
    assert front_end_section(tmp_path) is None


def test_loads_are_measured_from_when_the_client_asks(tmp_path):
    """The engine takes the second request in 5 ms after it came, between two iterations."""
    times = ((0.0, 0.0, 0.02, 0.1), (0.05, 0.055, 0.08, 0.2))  # asked, queued, first, last
    rows = [
        {"request_id": f"r{i}", "input_toks": 8, "output_toks": 9, "preemptions": i,
         "arrival_time": 1e9 + asked, "queued_ts": queued, "first_token_ts": first,
         "last_token_ts": last}
        for i, (asked, queued, first, last) in enumerate(times)
    ]  # fmt: skip
    (tmp_path / "load-1").mkdir()
    with gzip.open(tmp_path / "load-1" / "requests.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (found,) = measured(tmp_path, "load")
    assert found["ttft_s"] == pytest.approx((0.02 + 0.03) / 2, abs=1e-6)
    assert found["e2e_s"] == pytest.approx((0.1 + 0.15) / 2, abs=1e-6)
    assert found["preemptions"] == 1


def test_loads_of_one_pool_with_nearly_the_same_factor_have_different_names():
    assert _names([(2000, 1.3397, True), (2000, 1.3446, True)]) == ["s2000-x1.340", "s2000-x1.345"]
    assert _names([(2000, 1.3397, True), (3000, 1.3397, True)]) == ["s2000-x1.34", "s3000-x1.34"]
