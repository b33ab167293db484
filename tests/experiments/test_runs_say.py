"""Runs say what they are, and leave nothing of an older one; a finished one is not run again."""

import csv
import json
import re

import pandas as pd
import pytest
from tiny_run import tiny_run

from experiments.runs.description import ROOT, software
from experiments.runs.flat_summary import HEADLINES, flat, headlines
from experiments.runs.point import COLUMNS
from experiments.runs.sweep_table import Point, axes, rows

FIRST = [
    "model", "server", "gpu", "num_gpus", "pool_slots", "pool_blocks", "block_size", "pool_gib", "policy", "scheduler",
    "cost",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("tiny") / "run", "outputs=full", "slo.ttft_s=0.1", blocks=10)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_summary_begins_with_what_the_run_was(folder):
    found = summary(folder)
    assert next(iter(found)) == "run"
    assert list(found["run"])[: len(FIRST)] == FIRST
    assert (
        found["run"]
        | {
            "model": "opt-13b",
            "gpu": "a100-40gb",
            "pool_blocks": 10,
            "block_size": 4,
            "policy": "Paged(block_size=4, watermark=0.01)",
            "cost": "AnalyticCost",
            "arrivals": "Replay(speedup=1.0)",
        }
        == found["run"]
    )


def test_it_carries_version_and_commit(folder):
    run = summary(folder)["run"]
    assert run["simulator"] == software()["simulator"]
    assert {"version", "commit", "id"} <= run.keys()
    if (ROOT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{12}\+?", run["commit"])


def test_a_measured_profile_says_where(testbed, tmp_path):
    testbed("run", "+system=vllm", "cost=sosp23", "arrivals.duration_s=5", "outputs=summary", "hydra.run.dir=a")
    cost = summary(tmp_path / "a")["run"]["cost"]
    assert "derived for a100-40gb from NVIDIA H200" in cost


def test_the_table_begins_so_too_and_free_memory_is_free(testbed, tmp_path):
    for policy, word in (("paged", "free"), ("contiguous_oracle", "external")):
        output = testbed("run", f"policy={policy}", "arrivals.duration_s=30", "outputs=summary")[1]
        lines = [line for line in output.splitlines() if line.startswith("│")]
        assert "opt-13b on 1 x a100-40gb" in lines[0]
        assert re.search(r"15,728 slots, 983 blocks of 16 tokens, 12 GiB", lines[1])
        memory = next(line for line in lines if "memory per iteration" in line)
        assert word in memory
    assert "external" not in testbed("run", "arrivals.duration_s=30", "outputs=summary")[1]


def test_objectives_are_printed_where_they_are_set(testbed):
    output = testbed("run", "arrivals.duration_s=30", "outputs=summary", "slo.ttft_s=0.2", "slo.tpot_s=0.1")[1]
    assert re.search(
        r"inside the objectives .* [\d.]+% of the requests, [\d.]+ req/s \(TTFT 0.2 s, TPOT 0.1 s\)", output
    )


@pytest.mark.parametrize("name", ["requests", "iterations"])
def test_every_column_is_explained_and_nothing_else_is(folder, name):
    with (folder / f"{name}.csv").open() as file:
        columns = next(csv.reader(file))
    part = re.search(rf"## {name}\.csv(.*?)(\n## |\Z)", COLUMNS.read_text(), re.DOTALL)[1]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE)[1:] == columns
    assert (folder / "COLUMNS.md").read_text() == COLUMNS.read_text()


def test_every_key_of_a_summary_is_explained(folder):
    part = COLUMNS.read_text().partition("## summary.json")[2]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE)[1:] == list(summary(folder))
    for name in summary(folder)["run"]:
        assert re.search(rf"\b{name}\b", part), name


def test_latencies_are_columns(folder):
    table = pd.read_csv(folder / "requests.csv")
    assert (table["ttft_s"] == table["first_token_s"] - table["arrival_s"]).all()
    assert (table["e2e_s"] == table["finish_s"] - table["arrival_s"]).all()
    assert summary(folder)["e2e_s"]["mean"] == pytest.approx(table["e2e_s"].mean())
    assert summary(folder)["tpot_s"]["p95"] == pytest.approx(table["tpot_s"].quantile(0.95))
    assert summary(folder)["slo"]["share_inside"] == (table["ttft_s"] <= 0.1).mean()


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


def test_another_run_in_a_named_folder_is_run_and_leaves_nothing_of_the_old_one(testbed, tmp_path):
    testbed("run", "arrivals.duration_s=5", "hydra.run.dir=a")
    old = set(path.name for path in (tmp_path / "a").iterdir())
    for name in ("memory_map.png", "memory_map.html", "timeline.json", "report.html", "notes.txt"):
        (tmp_path / "a" / name).write_text("old")
    assert {"memory.png", "requests.csv"} < old
    testbed("run", "arrivals.duration_s=6", "outputs=summary", "hydra.run.dir=a")
    left = {path.name for path in (tmp_path / "a").iterdir()}
    assert left == {"config.yaml", "summary.json", "timing.json", "notes.txt"}


def test_a_sweep_ends_with_a_table_of_its_axes(testbed, tmp_path):
    words = ("policy=contiguous_max,paged", "arrivals.rate=1,2", "arrivals.duration_s=10", "outputs=summary")
    code, output, _ = testbed("run", "-m", *words)
    assert code == 0
    table = pd.read_csv(tmp_path / "runs" / "sweep.csv")
    assert list(table.columns[:4]) == ["policy", "arrivals.rate", "folder", "model"]
    assert table[["policy", "arrivals.rate"]].values.tolist() == [
        ["contiguous_max", 1], ["contiguous_max", 2], ["paged", 1], ["paged", 2],
    ]  # fmt: skip
    one = summary(tmp_path / "runs" / table.loc[3, "folder"])
    assert table.loc[3, "ttft_s_p95"] == one["ttft_s"]["p95"]
    assert "Sweep: 4 points" in output
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_axes_are_what_differs(folder):
    one, other = ({"policy": "a", "seed": str(i), "x": "same"} for i in (0, 1))
    points = [Point(one, summary(folder), "f"), Point(other, summary(folder), "g")]
    assert axes(points) == ["seed"]
    assert rows(points)[1]["seed"] == "1"
    assert rows(points)[1]["seed_in_full"] == 0


def test_headlines_are_of_the_row(folder):
    assert list(headlines(flat(summary(folder)))) == list(HEADLINES.values())
