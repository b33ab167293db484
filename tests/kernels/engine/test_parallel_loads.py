"""Loads that two and four GPUs have served, beside their simulation with the profiles that ship."""

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

import testbed
import testbed.kernels
from testbed.experiments.runs.compose import configured
from testbed.run.simulate import run
from testbed.study.sensitivity import figures_of

KEPT = Path(testbed.kernels.__file__).parent / "results" / "engine" / "parallel-loads"
TWO_GPUS = ("server.num_gpus=2", "~server.kv_memory_gib", "swap_space_gib=0", "trace=sharegpt")
FOR_40_S = ("arrivals.duration_s=40", "window_s=[0,40]")
AHEAD = (
    "scheduler=vllm_v1_async",
    "scheduler.ignore_eos=true",
    "scheduler.max_num_batched_tokens=2560",
)
DERIVED = ("cost=auto",)
PROFILES = ("llama-3-8b", "opt-13b")  # measured on two H200


def measured_of(model):
    return "cost=profile", f"cost.path=gpu-engine/h200-{model}-tp2"


LOADS = {
    "h200-llama-3-8b-in-turn-6": ("llama-3-8b", 61204, 6, *FOR_40_S, *measured_of("llama-3-8b")),
    "h200-llama-3-8b-ahead-12": (
        *("llama-3-8b", 61204, 12, *FOR_40_S),
        *(*AHEAD, *measured_of("llama-3-8b")),
    ),
    "h200-opt-13b-in-turn-4": ("opt-13b", 6500, 4, *FOR_40_S, *measured_of("opt-13b")),
    "h200-llama-3-70b-in-turn-1": ("llama-3-70b", 2000, 1, "arrivals.duration_s=10", *DERIVED),
    "h100-llama-3-70b-in-turn-1": ("llama-3-70b", 2000, 1, "arrivals.duration_s=10", *DERIVED),
    "h100-llama-3-8b-in-turn-6": ("llama-3-8b", 61204, 6, "arrivals.duration_s=12", *DERIVED),
}
SHIPPED = Path(testbed.__file__).parent / "cost" / "profiles" / "gpu-engine"
SERVERS = {"h100": "server=h100-80gb", "h200": "server=h200"}


@pytest.mark.parametrize("folder", LOADS)
def test_time_per_token_on_two_gpus_is_within_5_percent(folder):
    model, num_blocks, rate, *words = LOADS[folder]
    server = SERVERS[folder.split("-")[0]]
    load = [f"model={model}", f"server.num_blocks={num_blocks}", f"arrivals.rate={rate}"]
    config = configured([server, *TWO_GPUS, *load, *words])
    measured = json.loads((KEPT / folder / "summary.json").read_text())
    simulated = run(config).summary
    assert simulated["requests"] == measured["requests"]
    assert simulated["preemptions"] == measured["preemptions"]
    assert simulated["tpot_s"]["mean"] == pytest.approx(measured["tpot_s"]["mean"], rel=0.05)


@pytest.mark.parametrize("model", PROFILES)
def test_batches_of_decodes_are_within_5_percent_in_the_mean(model):
    rows = pd.read_csv(KEPT.parent / "parallel-batches.csv.gz")
    decodes = rows[(rows.model == model) & (rows.prompt_tokens == 0)]
    assert len(decodes) == 100
    assert decodes.predicted_us.sum() == pytest.approx(decodes.measured_us.sum(), rel=0.05)


class Load(NamedTuple):
    """One run: its folder's name, its model, and its words of `testbed run` without the server's
    GPUs, the engine and the costs.
    """

    name: str
    model: str
    words: list[str]


def read_loads(path):
    return [Load(**load) for load in json.loads(path.read_text())["loads"]]


def config_of(load, profile, server):
    """The simulation of a load by a profile."""
    costs = ("cost=profile", f"cost.path={profile}")
    return configured([f"server={server}", *load.words, *costs])


FOUR = KEPT.parent / "four-gpus"
AGAIN = FOUR / "again"  # predicted by the profiles that ship, before they were served
FOUR_LOADS = {
    load.name: (folder, load)
    for folder in (FOUR, AGAIN)
    for load in read_loads(folder / "loads.json")
}


@pytest.mark.parametrize("name", FOUR_LOADS)
def test_time_per_token_on_four_gpus_is_within_5_percent(name):
    folder, load = FOUR_LOADS[name]
    measured = json.loads((folder / "served" / name / "summary.json").read_text())
    simulated = run(config_of(load, f"gpu-engine/h200-{load.model}-tp4", "h200")).summary
    assert simulated["requests"] == measured["requests"]
    assert simulated["preemptions"] == measured["preemptions"]
    assert simulated["tpot_s"]["mean"] == pytest.approx(measured["tpot_s"]["mean"], rel=0.05)


@pytest.mark.parametrize("load", read_loads(AGAIN / "loads.json"), ids=lambda load: load.name)
def test_loads_on_another_host_are_as_predicted_before(load):
    kept = json.loads((AGAIN / "predicted.json").read_text())["predictions"][load.name]["figures"]
    measured = json.loads((AGAIN / "served" / load.name / "summary.json").read_text())
    assert kept["tpot_mean_s"] == pytest.approx(measured["tpot_s"]["mean"], rel=0.05)
    assert kept["ttft_p50_s"] == pytest.approx(measured["ttft_s"]["p50"], rel=0.10)


def predicted_loads():
    """Each load that was predicted, and its folder."""
    for folder in (FOUR, FOUR.with_name("two-gpus")):
        predicted = json.loads((folder / "predicted.json").read_text())["predictions"]
        loads = [load for load in read_loads(folder / "loads.json") if load.name in predicted]
        yield from (pytest.param(load, folder, id=load.name) for load in loads)


@pytest.mark.parametrize(("load", "folder"), list(predicted_loads()))
def test_predictions_made_before_are_those_of_the_profiles_as_measured(load, folder):
    kept = json.loads((folder / "predicted.json").read_text())["predictions"][load.name]
    as_measured = config_of(load, str(folder / "profiles" / f"{load.model}.json"), "h200")
    found = figures_of(run(as_measured).summary)
    for name in ("tpot_mean_s", "ttft_p50_s", "ttft_mean_s", "preemptions"):
        assert found[name] == pytest.approx(kept["figures"][name])


def test_shipped_profiles_of_four_gpus_differ_from_the_measured_in_whole_launches_alone():
    for model in ("opt-66b", "llama-3-70b"):
        shipped = json.loads((SHIPPED / f"h200-{model}-tp4.json").read_text())
        measured = json.loads((FOUR / "profiles" / f"{model}.json").read_text())
        capped = shipped["sections"].pop("launch_prompts")["points"]
        points = measured["sections"].pop("launch_prompts")["points"]
        assert shipped == measured
        for row, as_measured in zip(capped, points, strict=True):
            assert row[:3] == as_measured[:3]
            assert row[3] <= as_measured[3] if row[0] == "whole" else row == as_measured
