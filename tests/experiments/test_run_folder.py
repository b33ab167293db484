"""`testbed run` leaves the same files for the same seed: tables, a summary that agrees, their
columns; its server.
"""

import csv
import json
import re
import shlex

import pandas as pd
import pytest
from refusals import refuses
from tiny_run import tiny_run

from testbed.core.model_files import model_names, shipped
from testbed.core.shapes import read_model
from testbed.experiments.runs.choice_names import files_of
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.own_options import CHOICES
from testbed.run.build import build
from testbed.run.config import RunConfig

ON_H200 = "gpu@server.gpu=h200"
PROFILE = "cost=profile cost.path=h200-opt-13b-tp1"
BLOCKS = "server.num_blocks=300 ~server.kv_memory_gib"
MACHINES = {  # the server's name, which is in the config, and what the summary says of the run
    "the default": ("", "a100-40gb-x1", {"pool_slots": 15728}),
    "a pool that is computed": (f"{ON_H200} ~server.kv_memory_gib {PROFILE}", "h200-x1", {}),
    "a pool of one's own": (
        "'server.kv_memory_gib={opt-13b: 6}'",
        "a100-40gb-x1",
        {"pool_gib": 5.9998},
    ),
    "an empty table of pools": ("server.kv_memory_gib={}", "a100-40gb-x1", {"pool_slots": 16637}),
    "a pool in blocks": (f"{BLOCKS} policy.block_size=8", "a100-40gb-x1", {"pool_slots": 300 * 8}),
    "a pool in blocks of which vLLM V1 keeps one": (
        f"+system=vllm-v1 {BLOCKS}",
        "a100-40gb-x1",
        {"pool_slots": 299 * 16},
    ),
    "costs carried over": (
        "cost=sosp23",
        "a100-40gb-x1",
        {"cost": "derived for a100-40gb from NVIDIA H200"},
    ),
    "a GPU with a server": (
        "gpu=l4 server=h200 server.num_gpus=2",
        "l4-x2",
        {"gpu": "l4", "num_gpus": 2},
    ),
    "a model on eight GPUs": ("model=opt-175b", "a100-80gb-x8", {"num_gpus": 8}),
    "a model of today": ("model=llama-3-70b", "h200-x4", {"num_gpus": 4}),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_run(
        tmp_path_factory.mktemp("tiny") / "run", "outputs=full", "slo.ttft_s=0.1", blocks=10
    )


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_same_seed_gives_identical_files(run):
    first, second = (
        {
            path.name: path.read_bytes()
            for path in run("arrivals.duration_s=5 outputs=full", name).folder.iterdir()
        }
        for name in "ab"
    )
    assert {"config.yaml", "requests.csv", "iterations.csv", "summary.json"} <= first.keys()
    assert json.loads(first.pop("timing.json"))["wall_s"] > 0
    second.pop("timing.json")
    assert first == second


@pytest.mark.parametrize(
    ("outputs", "has_tables", "has_charts"),
    [("full", True, True), ("tables", True, False), ("summary", False, False)],
)
def test_outputs_are_tables_and_charts_as_chosen(run, outputs, has_tables, has_charts):
    folder = run(f"arrivals.duration_s=5 outputs={outputs}").folder
    names = {path.name for path in folder.iterdir()}
    assert ({"requests.csv", "iterations.csv"} <= names) == has_tables
    assert ("charts.png" in names) == has_charts


@pytest.mark.parametrize(("line", "server", "reported"), MACHINES.values(), ids=MACHINES)
def test_server_is_recorded_in_the_config_and_the_description_of_a_run(line, server, reported):
    setup = build(configured((*shlex.split(line), "arrivals.duration_s=5")))
    assert setup.config.values["server"]["name"] == setup.description["server"] == server
    assert all(str(value) in str(setup.description[key]) for key, value in reported.items()), (
        setup.description
    )


OF_MANY_GPUS = "qwen3.8-2.4t-a95b"
HAVE_SERVERS = {name for name in model_names() if f"of-{name}" in files_of("server")}
OWN_SERVERS = sorted(HAVE_SERVERS - {OF_MANY_GPUS})
OTHERS = sorted({*model_names()} - HAVE_SERVERS)  # which have one H200


def words_of(name):
    policy = ("policy=grouped", "policy.block_size=6404") if read_model(name).states else ()
    return (f"model={name}", "model.max_len=1024", "arrivals.duration_s=1", *policy)


@pytest.mark.parametrize(
    "name",
    [*OWN_SERVERS, *OTHERS[:3], *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS[3:])],
)
def test_every_shipped_model_has_a_default_server(name):
    assert build(configured(words_of(name))).pool.num_slots > 1024


def test_a_model_of_more_gpus_than_were_measured_asks_for_a_cost():
    """Its weights fit on 32 GPUs, whose all-reduces have no measured time."""
    refuses("cost: parallel_layer_s: ", build, configured(words_of(OF_MANY_GPUS)))


def test_every_other_model_fits_on_the_server_of_all():
    """Without composing each: composing takes long."""
    configs = {states: None for states in (False, True)}
    for name in OTHERS:
        states = bool(read_model(name).states)
        configs[states] = configs[states] or configured(words_of(name))
        assert configs[states].server.name == "h200-x1"
        shape = {**dict.fromkeys(CHOICES), **shipped(name)["shape"], "max_len": 1024}
        config = RunConfig.from_values({**configs[states].values, "model": shape})
        assert build(config).pool.num_slots > 1024, name


def test_vllm_v1_has_the_defaults_of_its_release():
    config = configured(("+system=vllm-v1",)).values  # on an A100
    assert config["scheduler"] == {
        "_target_": "testbed.sched.vllm_v1.AsyncVllmV1",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "ignore_eos": True,
        "enable_chunked_prefill": True,
        "prefetch": 0,
    }
    assert (config["policy"]["block_size"], config["policy"]["watermark"]) == (16, 0.0)


def test_tables_agree_with_the_summary(tiny):
    contents = summary(tiny)
    requests, spans = (pd.read_csv(tiny / f"{name}.csv") for name in ("requests", "iterations"))
    assert (requests["ttft_s"] == requests["first_token_s"] - requests["arrival_s"]).all()
    assert (requests["e2e_s"] == requests["finish_s"] - requests["arrival_s"]).all()
    latency = (requests["e2e_s"] / requests["output_len"]).mean()
    assert latency == pytest.approx(contents["normalized_latency_s_per_token"]["mean"])
    assert contents["e2e_s"]["mean"] == pytest.approx(requests["e2e_s"].mean())
    assert contents["tpot_s"]["p95"] == pytest.approx(requests["tpot_s"].quantile(0.95))
    assert contents["slo"]["share_inside"] == (requests["ttft_s"] <= 0.1).mean()
    assert spans["iterations"].sum() == contents["iterations"]
    batch = (spans["running"] * spans["iterations"]).sum() / contents["iterations"]
    assert batch == pytest.approx(contents["batch"]["mean_per_iteration"])


@pytest.mark.parametrize("name", ["requests", "iterations"])
def test_columns_page_lists_exactly_the_columns(tiny, name):
    with (tiny / f"{name}.csv").open() as file:
        columns = next(csv.reader(file))
    part = re.search(
        rf"## {name}\.csv(.*?)(\n## |\Z)", (tiny / "COLUMNS.md").read_text(), re.DOTALL
    )[1]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE)[1:] == columns


def test_columns_page_lists_every_summary_key(tiny):
    part = (tiny / "COLUMNS.md").read_text().partition("## summary.json")[2]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE)[1:] == list(summary(tiny))
    for name in summary(tiny)["run"]:
        assert re.search(rf"\b{name}\b", part), name
