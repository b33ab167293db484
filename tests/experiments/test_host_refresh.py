"""A profile at the present speed of its host, by kept sweeps of the ninth six loads."""

import json
from math import log, sqrt
from pathlib import Path
from shutil import copy

import numpy as np
import pandas as pd
import pytest
from refusals import refuses

from testbed.core.request import Rows, Workload
from testbed.core.shapes import read_model
from testbed.cost.host_drift import OF_REFRESHED, REFRESHED
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import read_profile
from testbed.experiments.real import vllm_engine
from testbed.experiments.real.vllm_engine import recorded_log as recorder
from testbed.experiments.real.vllm_engine.host_refresh import factors, refreshed, scaled
from testbed.experiments.real.vllm_engine.host_scale import BEYOND, WITHIN
from testbed.experiments.real.vllm_engine.in_vllm.sweeps import PRESENT, present_waves
from testbed.experiments.real.vllm_engine.logged_steps import read_steps
from testbed.study.cost_spread import spread_of

NINTH = Path(vllm_engine.__file__).parent / "results" / "h200-llama-3.1-8b" / "pressure-9"
PROFILE = NINTH / "profile-0.json"
MODEL = read_model("llama-3.1-8b")
LIMITS = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024, "max_model_len": 16384}
SMALL_POOL = 2000 * 16


@pytest.fixture(scope="module")
def steps():
    return read_steps(NINTH / "sweeps0")


def cost_of(profile):
    return ProfileCost(MODEL, None, profile)


def test_by_its_own_sweeps_a_profile_stays_as_it_is(steps):
    assert factors(steps, read_profile(PROFILE)) == pytest.approx({WITHIN: 1, BEYOND: 1}, abs=0.01)


def test_a_pass_of_the_sweeps_is_as_slow_as_the_profile_knows_its_passes(steps):
    profile = read_profile(PROFILE)
    passes = sorted(steps.pass_s.dropna().unique())
    for began_s, slowness in zip(passes, profile["fit"]["drift"]["slowness"], strict=True):
        found = factors(steps[steps.pass_s == began_s], profile)
        assert found == pytest.approx({WITHIN: slowness, BEYOND: slowness}, rel=0.03)


def test_launches_within_and_beyond_the_graphs_are_scaled_apart(steps):
    profile = read_profile(PROFILE)
    changed = scaled(profile, {WITHIN: 0.8, BEYOND: 1.5})
    before, after = cost_of(profile), cost_of(changed)
    for counts, factor in (((16, 0, 0), 0.8), ((16, 1, 256), 0.8), ((16, 1, 1000), 1.5)):
        pairs = zip(before.launch(*counts), after.launch(*counts), strict=True)
        ratios = [new / old for old, new in pairs if old]
        assert ratios == pytest.approx([factor] * len(ratios), rel=0.001)
    work = Work(16, 16 * 300, 300, prefill=((1000, 0),))
    assert after.iteration(work) == before.iteration(work)
    assert factors(steps, changed)[BEYOND] == pytest.approx(1 / 1.5, abs=0.01)


def test_a_refreshed_profile_names_its_origin_and_has_a_narrower_interval():
    profile = refreshed(PROFILE, NINTH / "sweeps1")  # of a slower engine on another GPU
    origin = profile["fingerprint"][REFRESHED]
    assert origin["from"] == str(PROFILE)
    assert origin[WITHIN] < 1
    before, after = (spread_of(cost_of(each)) for each in (read_profile(PROFILE), profile))
    assert after.launches == OF_REFRESHED < before.launches
    assert after.computing == before.computing


def test_an_interval_narrows_as_far_as_servings_deviated_from_the_sweep_before():
    servings = pd.read_csv(NINTH / "canaries.csv")
    apart = [
        log(row.launches_in_graphs_over_profile / row.canary_in_graphs_over_profile) / 2
        + log(row.launches_beyond_over_profile / row.canary_beyond_over_profile) / 2
        for row in servings.itertuples()
    ]
    of_few = len(apart) / (len(apart) - 2)
    assert round(sqrt(of_few * np.mean(np.square(apart))), 3) == OF_REFRESHED


def test_other_graphs_another_gpu_and_few_launches_are_refused(tmp_path, steps):
    profile = read_profile(PROFILE)
    other = tmp_path / "other.json"
    for key, changed in (
        ("graph_sizes", {**profile, "cuda_graph_sizes": [1, 2, 4]}),
        ("device", {**profile, "fingerprint": {**profile["fingerprint"], "device": "NVIDIA A100"}}),
    ):
        other.write_text(json.dumps(changed))
        refuses(f"^--refresh: {key} of the profile", refreshed, other, NINTH / "sweeps0")
    few = steps[steps.pass_s.notna()].head(30)
    refuses("^--refresh: .* launches of prompts", factors, few, profile)


def test_the_short_sweep_fits_into_a_small_pool_with_as_many_prompts_on_either_side():
    asked = list(present_waves(**LIMITS, pool_tokens=SMALL_POOL))
    assert len(asked) == 3
    for wave in asked:
        running = sum(map(sum, wave["running"]))
        assert running + max(count * new for count, new, _ in wave["prompts"]) < SMALL_POOL
        tokens = [len(wave["running"]) + count * new for count, new, _ in wave["prompts"]]
        assert sum(size > 512 for size in tokens) == len(tokens) / 2
    assert len(list(present_waves(**LIMITS | {"max_num_seqs": 8}, pool_tokens=SMALL_POOL))) == 1


def test_a_recorded_log_comes_with_the_refreshed_profile(tmp_path, monkeypatch):
    """The vLLM logs what the ninth six's host did in its sweeps, then one request."""
    asked = []

    def serve(_python, plan, folder, _limit_s):
        asked.extend(plan["waves"])
        for name in ("steps.csv.gz", "waves.csv", "facts.json", "machine.json"):
            copy(NINTH / "sweeps0" / name, folder)
        (folder / "plan.json").touch()
        (folder / "preempted.csv").write_text("request_id,preemptions\n")
        (folder / "requests.jsonl").write_text('{"request_id": "r7", "wave": "serve"}\n')

    monkeypatch.setattr(recorder, "check_installed", lambda python: "0.20.2")
    monkeypatch.setattr(recorder, "run_plan", serve)
    workload = Workload(Rows(np.array([20]), np.array([10])), np.array([0]))
    words = ("vllm serve meta-llama/Llama-3.1-8B", workload, "python", tmp_path / "out", 420)
    recorder.record(*words, PROFILE)
    assert asked[1] == PRESENT
    profile = read_profile(tmp_path / "out" / "profile.json")
    assert profile["fingerprint"][REFRESHED][BEYOND] == pytest.approx(1, abs=0.01)
