"""The study of KV groups: what sequences need by hand, and what the page rules hold of it."""

from dataclasses import replace

import pandas as pd
import pytest
from drawings import check_drawing
from refusals import refuses

from testbed.core.shapes import read_model
from testbed.experiments.paper.reproduction import load
from testbed.experiments.paper.studies.groups import needed_bytes
from testbed.experiments.runs.run_store import RunStore

GIB = {"gemma-3-27b": 2, "nemotron-h-8b": 2}
ROWS = "input_tokens,output_tokens\n" + "3000,100\n" * 40


@pytest.fixture
def table(tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    study = load("groups")
    common = [word for word in study.common if "kv_memory" not in word]
    pools = "+server.kv_memory_gib={" + ", ".join(f"{name}: {gib}" for name, gib in GIB.items()) + "}"
    trace = ["trace=csv", f"trace.path={tmp_path / 'rows.csv'}", "arrivals.rate=1"]
    study = replace(study, common=[*common, pools], models=list(GIB), traces={"rows": trace, "mooncake": []})
    store = RunStore(tmp_path)
    rows = [row for task in study.tasks(1) for row in task.work(store)]
    return study, pd.DataFrame(rows).set_index(["model", "rule"])


def test_needed_bytes_are_those_that_a_later_token_reads():
    gemma, nemotron = read_model("gemma-3-27b"), read_model("nemotron-h-8b")
    assert needed_bytes(gemma, 3000) == gemma.slot_bytes * (10 * 3000 + 52 * 1024)
    assert needed_bytes(gemma, 500) == gemma.kv_bytes_per_token * 500
    assert needed_bytes(nemotron, 3000) == 4 * 3000 * nemotron.slot_bytes + 24 * nemotron.states.state_bytes


def test_the_page_rules_hold_what_is_needed_and_a_uniform_pool_wastes_the_most(table, tmp_path, request):
    study, rows = table
    assert set(rows.loc["nemotron-h-8b"].index) == {"one page size", "large pages"}
    assert (rows["useful_gib"] <= rows["held_gib"] + 1e-9).all()
    assert (rows["useful_gib"] + rows["wasted_gib"] <= rows["pool_gib"] + 1e-9).all()
    gemma = rows.loc["gemma-3-27b"]
    assert gemma.loc["uniform", "sequences"] == 1
    assert gemma.loc["uniform", "wasted_gib"] == gemma["wasted_gib"].max()
    assert gemma.loc["large pages", "sequences"] >= 2
    findings = study.findings(rows.reset_index())
    rows.reset_index().to_csv(tmp_path / "groups.csv", index=False)
    check_drawing(study.draw(tmp_path / "groups.csv"), findings, request)
    found = {(one.setting, one.system): one.simulated for one in findings}
    assert found["rows, gemma-3-27b", "large pages"] == gemma.loc["large pages", "useful_percent"]


def test_a_policy_that_cannot_store_states_is_never_asked_to(tmp_path):
    study = load("groups")
    assert study.filled(RunStore(tmp_path), "sharegpt", "nemotron-h-8b", "uniform", 0) == []
    refuses("unknown-model", study.filled, RunStore(tmp_path), "sharegpt", "unknown-model", "uniform", 0)


def test_a_prompt_that_is_sent_twice_finds_whole_units_and_the_figure_shows_them(tmp_path, request):
    study = load("hit_units")
    study = replace(study, models=["nemotron-h-8b"], marked=[3784, 8073], step=2144)
    table = pd.DataFrame([row for task in study.tasks(None) for row in task.work(RunStore(tmp_path))])
    marked = table[table["marked"]].pivot(index="prompt_tokens", columns="dropped_units", values="hit_tokens")
    assert marked.to_dict("list") == {0: [2144, 3 * 2144], 1: [0, 2 * 2144]}
    assert study.findings(table)[-1].simulated == "yes"
    table.to_csv(tmp_path / "hits.csv", index=False)
    check_drawing(study.draw(tmp_path / "hits.csv"), study.findings(table), request)
    table.loc[0, "hit_tokens"] += 1
    assert study.findings(table)[-1].simulated == "no"
