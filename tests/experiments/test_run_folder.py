"""`testbed run` leaves a folder that says everything, prints what matters, and runs nothing twice."""

import csv
import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from tiny_run import tiny_run

from testbed.build import build
from testbed.core.shapes import model_names, read_model
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_folder import complete

FILES = {
    "config.yaml", "requests.csv", "iterations.csv", "summary.json", "timing.json", "charts.png", "COLUMNS.md",
}  # fmt: skip
FIRST = [
    "model", "server", "gpu", "num_gpus", "pool_slots", "slot_layers", "pool_blocks", "block_size", "pool_gib",
    "policy", "scheduler", "cost",
]  # fmt: skip
ON_H200 = "gpu@server.gpu=h200"
PROFILE = "cost=profile cost.path=h200-opt-13b-tp1"
BLOCKS = "server.num_blocks=300 ~server.kv_memory_gib"
MACHINES = {  # the server's name, which is in the config, and what the summary says of the run
    "the default": ("", "a100-40gb-x1", {"pool_slots": 15728}),
    "a pool that is computed": (f"{ON_H200} ~server.kv_memory_gib {PROFILE}", "h200-x1", {}),
    "a pool of one's own": ("'server.kv_memory_gib={opt-13b: 6}'", "a100-40gb-x1", {"pool_gib": 5.9998}),
    "an empty table of pools": ("server.kv_memory_gib={}", "a100-40gb-x1", {"pool_slots": 16637}),
    "a pool in blocks": (f"{BLOCKS} policy.block_size=8", "a100-40gb-x1", {"pool_slots": 300 * 8}),
    "a pool in blocks of which vLLM V1 keeps one": (
        f"+system=vllm-v1 {BLOCKS}", "a100-40gb-x1", {"pool_slots": 299 * 16}),
    "costs carried over": ("cost=sosp23", "a100-40gb-x1", {"cost": "derived for a100-40gb from NVIDIA H200"}),
    "a GPU with a server": ("gpu=l4 server=h200 server.num_gpus=2", "l4-x2", {"gpu": "l4", "num_gpus": 2}),
    "a model on eight GPUs": ("model=opt-175b", "a100-80gb-x8", {"num_gpus": 8}),
    "a model of today": ("model=llama-3-70b", "h200-x4", {"num_gpus": 4}),
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("tiny") / "run", "outputs=full", "slo.ttft_s=0.1", blocks=10)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_same_seed_gives_identical_files(run):
    first, second = (
        {path.name: path.read_bytes() for path in run("arrivals.duration_s=20 outputs=full", name).folder.iterdir()}
        for name in "ab"
    )
    assert set(first) == FILES
    assert json.loads(first.pop("timing.json"))["wall_s"] > 0
    second.pop("timing.json")
    assert first == second


@pytest.mark.parametrize(("line", "server", "reported"), MACHINES.values(), ids=MACHINES)
def test_server_is_recorded_in_the_config_and_the_description_of_a_run(line, server, reported):
    setup = build(configured((*shlex.split(line), "arrivals.duration_s=5")))
    assert setup.config.values["server"]["name"] == setup.description["server"] == server
    assert all(str(value) in str(setup.description[key]) for key, value in reported.items()), setup.description


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_model_has_a_default_server(name):
    policy = ("policy=grouped", "policy.block_size=6404") if read_model(name).states else ()
    setup = build(configured((f"model={name}", "model.max_len=1024", "arrivals.duration_s=1", *policy)))
    assert setup.pool.num_slots > 1024


def test_vllm_v1_has_the_defaults_of_its_release():
    config = configured(("+system=vllm-v1",)).values
    assert config["scheduler"] == {
        "_target_": "testbed.sched.vllm_v1.AsyncVllmV1",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "ignore_eos": True,
        "cuts_lone_prompt": True,
        "enable_chunked_prefill": True,
    }
    assert (config["policy"]["block_size"], config["policy"]["watermark"]) == (16, 0.0)


def test_summary_starts_with_a_description_of_the_run(tiny):
    found = summary(tiny)
    assert next(iter(found)) == "run"
    assert list(found["run"])[: len(FIRST)] == FIRST
    reported = {
        "model": "opt-13b", "gpu": "a100-40gb", "pool_blocks": 10, "block_size": 4,
        "policy": "Paged(block_size=4, watermark=0.01)", "arrivals": "Replay(speedup=1.0)",
    }  # fmt: skip
    assert reported.items() <= found["run"].items()
    assert found["run"]["cost"].startswith("AnalyticCost")
    assert {"version", "commit", "simulator", "id"} <= found["run"].keys()
    if (Path(__file__).parents[2] / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{12}\+?", found["run"]["commit"])


def test_tables_agree_with_the_summary(tiny):
    found = summary(tiny)
    requests, spans = (pd.read_csv(tiny / f"{name}.csv") for name in ("requests", "iterations"))
    assert (requests["ttft_s"] == requests["first_token_s"] - requests["arrival_s"]).all()
    assert (requests["e2e_s"] == requests["finish_s"] - requests["arrival_s"]).all()
    latency = (requests["e2e_s"] / requests["output_len"]).mean()
    assert latency == pytest.approx(found["normalized_latency_s_per_token"]["mean"])
    assert found["e2e_s"]["mean"] == pytest.approx(requests["e2e_s"].mean())
    assert found["tpot_s"]["p95"] == pytest.approx(requests["tpot_s"].quantile(0.95))
    assert found["slo"]["share_inside"] == (requests["ttft_s"] <= 0.1).mean()
    assert spans["iterations"].sum() == found["iterations"]
    batch = (spans["running"] * spans["iterations"]).sum() / found["iterations"]
    assert batch == pytest.approx(found["batch"]["mean_per_iteration"])


@pytest.mark.parametrize("name", ["requests", "iterations"])
def test_columns_page_lists_exactly_the_columns(tiny, name):
    with (tiny / f"{name}.csv").open() as file:
        columns = next(csv.reader(file))
    part = re.search(rf"## {name}\.csv(.*?)(\n## |\Z)", (tiny / "COLUMNS.md").read_text(), re.DOTALL)[1]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE)[1:] == columns


def test_columns_page_lists_every_summary_key(tiny):
    part = (tiny / "COLUMNS.md").read_text().partition("## summary.json")[2]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE)[1:] == list(summary(tiny))
    for name in summary(tiny)["run"]:
        assert re.search(rf"\b{name}\b", part), name


def test_oversized_requests_are_rejected_with_a_reason(run, tmp_path):
    (tmp_path / "long.csv").write_text("input_tokens,output_tokens\n10,5\n2000,100\n")
    folder = run("trace=csv trace.path=long.csv arrivals.duration_s=60 outputs=full").folder
    requests = pd.read_csv(folder / "requests.csv", keep_default_na=False)
    assert set(requests["rejected"]) == {"", "2100 tokens are more than the longest sequence of 2048"}


def test_a_finished_run_is_not_run_again(testbed, tmp_path):
    words = ("run", "arrivals.duration_s=5", "outputs=summary")
    first = testbed(*words)[1]
    path = next(tmp_path.glob("runs/*/summary.json"))
    before = path.stat().st_mtime_ns
    code, output, _ = testbed(*words)
    assert (code, path.stat().st_mtime_ns) == (0, before)
    assert "complete already, nothing was run (--again runs it again)" in output
    assert output.splitlines()[:-1] == first.splitlines()[:-1]
    code, output, _ = testbed(*words, "--again")
    assert path.stat().st_mtime_ns > before
    assert "complete already" not in output


def test_summary_without_a_current_key_is_incomplete(run):
    whole = run("arrivals.duration_s=5")
    assert complete(whole.folder) == whole.summary
    del (lacking := dict(whole.summary))["cost_profile"]
    (whole.folder / "summary.json").write_text(json.dumps(lacking))
    assert complete(whole.folder) is None


def test_new_run_in_a_named_folder_replaces_the_old_one_only_if_asked(run, testbed):
    old = run("arrivals.duration_s=5 outputs=full", "a").folder
    assert {"charts.png", "requests.csv"} < {path.name for path in old.iterdir()}
    for name in ("memory.png", "memory_map.html", "timeline.json", "report.html", "notes.txt"):
        (old / name).write_text("old")
    kept = {path: path.read_bytes() for path in old.iterdir()}
    error = testbed.refused("run", "arrivals.duration_s=6", f"hydra.run.dir={old}")
    assert "a: has another run (--again replaces it" in error
    assert kept == {path: path.read_bytes() for path in old.iterdir()}
    run("--again arrivals.duration_s=6", "a")
    assert {path.name for path in old.iterdir()} == {"config.yaml", "summary.json", "timing.json", "notes.txt"}


@pytest.mark.parametrize("command", ["show-memory", "timeline"])
def test_a_config_that_was_changed_after_the_run_is_refused(testbed, run, command):
    path = run("arrivals.duration_s=5").folder / "config.yaml"
    path.write_text(path.read_text().replace("rate: 1.0", "rate: 3.0"))
    assert "config.yaml: was changed after the run" in testbed.refused(command, "out")
