"""The drift of a host between the passes of its sweeps, and the interval that it widens."""

import json
from math import sqrt
from pathlib import Path
from statistics import fmean

import pandas as pd
import planted_vllm as planted
import pytest

from testbed.core.shapes import read_model
from testbed.cost.host_drift import (
    DRIFT,
    OF_OTHERS,
    PAIRS,
    between_passes,
    drift_of_runs,
    drift_words,
)
from testbed.cost.launch_slowness import SLOWNESS
from testbed.cost.profile import ProfileCost, read_profile
from testbed.experiments.real import vllm_engine
from testbed.experiments.real.vllm_engine.calibrate_vllm import lines, with_fit
from testbed.experiments.real.vllm_engine.left_out_sizes import table
from testbed.experiments.real.vllm_engine.logged_steps import read_steps
from testbed.experiments.real.vllm_engine.pass_drift import drift
from testbed.experiments.real.vllm_engine.sweep_profile import Machine, profile_of
from testbed.study.cost_spread import spread_of

MACHINE = Machine(read_model("llama-3.1-8b"), 1, planted.SIZES, None, {"source": "measured"})
PASSES = Path(vllm_engine.__file__).parent / "results" / "h200-llama-3.1-8b" / "sweep_passes.csv"
SHIPPED = "vllm-0.20/h100-llama-3.1-8b-tp1"


def swept(folder, *slowness):
    """Sweeps whose passes over prompts among decodes meet hosts as slow as that."""
    folder.mkdir()
    sweeps, waves = planted.apart(), [("name", "started_s", "ended_s")]
    for sweeps.slowness in slowness:
        began_ms = sweeps.now
        planted.add_prompts_among_decodes(sweeps)
        waves.append(("prompts among 8 decodes", began_ms / 1e3, sweeps.now / 1e3))
    sweeps.write(folder)
    (folder / "waves.csv").write_text("".join(f"{a},{b},{c}\n" for a, b, c in waves))
    return read_steps(folder)


def fit_of(*slowness):
    return {DRIFT: {"began_s": list(range(len(slowness))), "slowness": list(slowness)}}


def test_a_host_that_slows_down_between_passes_is_seen(tmp_path):
    found = drift(swept(tmp_path / "slower", 1.0, 1.2, 1.1), MACHINE)
    assert found["slowness"] == pytest.approx([1 / 1.1, 1.2 / 1.1, 1.0], abs=0.01)
    assert found["began_s"][0] == 0 < found["began_s"][1] < found["began_s"][2]
    calm = drift(swept(tmp_path / "calm", 1.0, 1.0, 1.0), MACHINE)
    assert calm["slowness"] == [1.0, 1.0, 1.0]


def test_a_profile_has_the_slowness_of_its_host_within_passes_without_their_drift(tmp_path):
    """In each pass a host is slow, then fast, and the second pass is slower as a whole."""
    sweeps, waves = planted.apart(), ["name,started_s,ended_s"]
    planted.add_prompts_among_decodes(sweeps)  # numbers of tokens that are launched first
    for of_pass in (1.0, 1.3):
        began_ms = sweeps.now
        for slowness in (1.2, 0.8):
            sweeps.slowness = of_pass * slowness
            planted.add_prompts_among_decodes(sweeps)
        waves.append(f"prompts among 8 decodes,{began_ms / 1e3},{sweeps.now / 1e3}")
    sweeps.write(tmp_path)
    (tmp_path / "waves.csv").write_text("\n".join(waves))
    points = profile_of(read_steps(tmp_path), MACHINE)["sections"][SLOWNESS]["points"]
    moments = [moment for moment, _ in points]
    assert moments == sorted({0, *moments})
    half = len(points) // 4
    expected = [*[1.2] * half, *[0.8] * half] * 2
    assert [factor for _, factor in points] == pytest.approx(expected, rel=0.04)


def test_a_steady_host_has_no_slow_moments_and_one_pass_shows_none(tmp_path):
    calm = profile_of(swept(tmp_path / "calm", *[1.0] * 4), MACHINE)["sections"][SLOWNESS]["points"]
    assert [factor for _, factor in calm] == pytest.approx([1.0] * len(calm))
    assert SLOWNESS not in profile_of(swept(tmp_path / "one", 1.0), MACHINE)["sections"]


def test_one_pass_knows_no_drift_and_a_profile_says_so(tmp_path):
    steps = swept(tmp_path / "one", 1.0)
    assert drift(steps, MACHINE) is None
    assert drift(steps.assign(pass_s=float("nan")), MACHINE) is None
    assert any("not known" in line for line in lines(about(with_fit(steps, MACHINE))))
    drifted = with_fit(swept(tmp_path / "two", 0.9, 1.1), MACHINE)
    assert len(drifted["fit"][DRIFT]["slowness"]) == 2
    assert not any("not known" in line for line in lines(about(drifted)))


def test_repeats_are_as_far_apart_as_the_first_and_the_last_pass(tmp_path):
    """Launches of 700 tokens, which last longer than the GPU computes, take 1.2 times as long."""
    apart = []
    for number, slowness in enumerate([(1.0, 1.2, 1.0), (1.0, 1.0, 1.2)]):
        rows = list(table(swept(tmp_path / str(number), *slowness), MACHINE))
        worst = {row[1]: float(row[5]) for row in rows if row[0] == "prompts among decodes"}
        apart.append(worst["repeats of the kind at another time"])
    assert apart[0] == 0
    assert 5 < apart[1] < 20


def about(profile):
    named = {**profile["fingerprint"], "system": "vLLM", "device": "a GPU"}
    return {**profile, "fingerprint": named}


def test_a_run_is_drawn_further_off_on_a_host_that_drifts_more_or_is_less_known():
    calm, drifting = fit_of(1.0, 1.0, 1.0), fit_of(0.8, 1.2, 1.0)
    assert drift_of_runs(calm) < drift_of_runs(drifting)
    assert drift_of_runs(calm) < drift_of_runs(fit_of(1.0, 1.0)) < drift_of_runs({})
    assert "not known" in drift_words({})
    assert "3 passes in 2 s" in drift_words(drifting)


def test_many_passes_of_one_host_count_more_than_other_hosts():
    passes = [0.8, 1.25] * 500
    of_many = drift_of_runs(fit_of(*passes))
    assert of_many == pytest.approx(0.223, rel=0.02)  # log 1.25


def test_other_hosts_deviate_as_their_recorded_passes_do():
    passes = pd.read_csv(PASSES)
    ratios = passes[["launches_in_graphs_ratio", "launches_beyond_ratio"]].to_numpy().ravel()
    of_pair = [between_passes((1.0, ratio)) for ratio in ratios]
    assert round(sqrt(fmean(deviation**2 for deviation in of_pair)), 2) == OF_OTHERS
    assert len(passes) == PAIRS


def test_the_interval_is_drawn_by_sizes_left_out_and_drift(tmp_path):
    profile = read_profile(SHIPPED)
    costs = []
    for slowness in ((1.0, 1.0, 1.0), (0.8, 1.2, 1.0)):
        own = tmp_path / "own.json"
        own.write_text(json.dumps({**profile, "fit": {**profile["fit"], **fit_of(*slowness)}}))
        costs.append(ProfileCost(MACHINE.model, None, read_profile(own)))
    calm, drifting = map(spread_of, costs)
    assert profile["fit"]["left_out"]["launches"] < calm.launches < drifting.launches
    assert calm.computing == drifting.computing
