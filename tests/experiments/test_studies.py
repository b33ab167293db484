"""Every study that no other test reproduces, on a tiny setting: rows, findings, and the figure from its CSV."""

from dataclasses import replace

import pandas as pd
import pytest
from drawings import check_drawing, overlapping_labels
from matplotlib import pyplot
from refusals import refuses

from testbed.core.shapes import read_model
from testbed.experiments.paper.reproduction import load
from testbed.experiments.paper.studies.groups import needed_bytes
from testbed.experiments.paper.studies.open_sessions import NO_TIER
from testbed.experiments.paper.studies.study import Finding
from testbed.experiments.runs.compose import CONF
from testbed.experiments.runs.run_store import RunStore


@pytest.fixture
def conducted(tmp_path, request):
    """The table of a study, once its figure could be drawn from it."""

    def conduct(study, files=()):
        rows = [row for task in study.tasks(1) for row in task.work(RunStore(tmp_path / "runs", files))]
        path = tmp_path / "table.csv"
        pd.DataFrame(rows).to_csv(path, index=False)
        figure = study.draw(path)
        assert figure.axes
        assert figure.get_figwidth() <= 3.3 * len({axes.get_position().x0 for axes in figure.axes})
        assert not overlapping_labels(figure)
        table = pd.read_csv(path)
        findings = study.findings(table)
        assert all(isinstance(finding, Finding) for finding in findings)
        check_drawing(figure, findings, request)
        pyplot.close("all")
        return table

    conduct.path = tmp_path / "table.csv"
    return conduct


def test_saturation_study_fills_batches_up_to_the_limit(conducted):
    study = load("fig1")
    study.common = (*study.common, "arrivals.duration_s=60", "window_s=[30,60]")
    study.batch_sizes = (2, 4)
    table = conducted(study)
    assert sorted(table["batch"].round()) == [2, 2, 4, 4]
    rates = table.pivot_table(index="limit", columns="system", values="tokens_per_s")
    memory = table.pivot_table(index="limit", columns="system", values="memory_gib")
    assert (rates.loc[4] > rates.loc[2]).all()
    assert (memory["vllm"] < memory["existing"]).all()


def test_length_study_gives_densities_and_means(conducted):
    study = load("fig11")
    study.num_rows = 2000
    table = conducted(study)
    bars = table[table["from"].notna()]
    areas = (bars["simulated"] * (bars["to"] - bars["from"])).groupby([bars["setting"], bars["quantity"]]).sum()
    assert areas.between(0.9, 1.001).all()
    assert {finding.quantity for finding in study.findings(table)} == {
        f"mean_{side}{kind}" for side in ("input", "output") for kind in ("", "_ratio")
    }


def test_rate_curves_give_sustained_rates_and_their_ratio(conducted):
    study = load("fig16")
    study.common = (*study.common, "arrivals.duration_s=30")
    study.limit, study.precision = 0.05, 0.3
    study.panels = [{**panel, "rates": {"orca-oracle": [4, 16], "vllm": [4, 32]}} for panel in study.panels]
    table = conducted(study)
    knees = table[table["quantity"] == "sustained_rate"]
    assert len(knees) == 4
    latencies = table[table["quantity"] == "normalized_latency"].groupby(["setting", "system"])["simulated"]
    assert (latencies.min() < 0.05).all()
    assert (latencies.max() >= 0.05).all()
    assert all(finding.simulated > 0 for finding in study.findings(table))


def test_memory_saving_grows_with_the_number_of_sequences(conducted):
    study = load("fig15")
    fast = "cost.choices.overhead_per_sequence_s=0"  # in so few seconds a slow server settles at no batch
    study.common = (*study.common, "arrivals.duration_s=20", "window_s=[10,20]", fast)
    table = conducted(study)
    saved = table.groupby("setting")["simulated"].mean()
    for kind in ("alpaca parallel", "alpaca beam", "sharegpt parallel", "sharegpt beam"):
        two, four, six = (saved[f"opt-13b {kind} {width}"] for width in (2, 4, 6))
        assert 0 < two < four < six < 100
    findings = {finding.quantity: finding for finding in study.findings(table) if finding.figure == "sec6.3"}
    assert findings["prompt_share_of_kv"].simulated > 0


def test_kernel_study_combines_bench_and_block_sizes(conducted):
    study = load("fig18")
    study.common = (*study.common, "arrivals.duration_s=20")
    study.block_sizes = (16, 64)
    table = conducted(study)
    assert set(table[table["figure"] == "fig18a"]["system"]) == {"paged", "contiguous", "paper"}
    assert (table[table["figure"] == "fig18b"]["simulated"] > 0).all()
    ours, theirs = (finding for finding in study.findings(table) if finding.figure == "fig18a")
    assert (ours.system, theirs.system) == ("paged vs contiguous", "paper's kernel vs contiguous")
    assert max(ours.simulated) < min(theirs.simulated)


def test_recovery_study_covers_every_block_size(conducted):
    study = load("fig19")
    study.common = (*study.common, "arrivals.duration_s=20", "server.kv_memory_gib={opt-13b:2}")
    study.block_sizes = (16, 64)
    table = conducted(study)
    times = table[table["figure"] == "fig19a"].pivot_table(
        index=["setting", "block_size"], columns="system", values="simulated"
    )
    assert (times["recompute"].groupby("setting").nunique() == 1).all()  # whatever the block size
    assert (table[table["figure"] == "fig19b"]["preemptions"] > 0).all()
    findings = study.findings(table)
    assert all(0 < one.simulated < 100 for one in findings if one.system == "recompute of tails")
    assert sum(one.system == "recompute of tails" for one in findings) == 2
    scored = next(finding for finding in findings if finding.system == "recompute")
    (drawn,) = (line for line in study.draw(conducted.path).axes[0].lines if "Recompute" in str(line.get_label()))
    assert drawn.get_label() == "Recompute x 0.9"
    assert drawn.get_ydata() == pytest.approx([scored.simulated] * 2)


def test_prefix_cache_study_gives_hit_rates(conducted):
    study = load("mooncake")
    study.orders = ("lru", "belady")
    chats = study.traces["chat_histories"]
    chats = {**chats, "overrides": [*chats["overrides"], "arrivals.duration_s=10"]}
    study.traces = {"chat_histories": {**chats, "replay_blocks": [100, 1000]}}
    hits = conducted(study).pivot_table(index="num_blocks", columns="order", values="hit_rate")
    assert (hits["belady"] >= hits["lru"]).all()
    assert (hits.loc[1000] > hits.loc[100]).all()


def test_store_rules_study_compares_each_rule_with_no_tier(tmp_path):
    study = load("store_rules")
    refuses("give --lengths agent_sessions=FILE", study.served, RunStore(tmp_path), NO_TIER, 0.0)
    store = RunStore(tmp_path, (("agent_sessions", str(CONF.parent / "examples" / "sessions.jsonl")),))
    tier = [study.ruled(store, "write back", ratio)[1] for ratio in (0.9, 1.8)]
    assert tier[0] == pytest.approx(2 * tier[1])
    config, none = study.ruled(store, NO_TIER, 0.0)
    assert none == 0
    assert config.server.kv_memory_gib["llama-3-8b"] == pytest.approx(0.3 * 0.9 * tier[0])


def test_transfer_study_takes_its_times_from_the_measured_ones(conducted):
    times = conducted(load("transfer_sizes")).pivot_table(
        index="block_size", columns=["way", "method"], values="transfer_ms"
    )
    assert (times.loc[16] > times.loc[64]).all()
    assert (times["to the host", "copies"] > times["to the host", "gather"]).all()


def test_time_to_live_study_measures_whole_sessions(conducted, tmp_path):
    study = load("time_to_live")
    study.common = [*study.common, "trace.num_sessions=2", "arrivals.at_once=2"]
    study.times_s, study.systems = [1e-3, 1], {"program order": ["scheduler=by_session"]}
    study.device_share = 2
    table = conducted(study, (("agent_sessions", str(CONF.parent / "examples" / "sessions.jsonl")),))
    assert (table["mean_job_s"] > table["mean_e2e_s"]).all()
    assert table["mean_job_s"].nunique() == 1  # the pool has slots for all
    assert [one.setting for one in study.findings(table)] == ["0.001 s", "0.001 s", "1 s", "1 s", "", ""]


def test_what_lmcache_found_is_read_from_the_table(tmp_path, request):
    rows = [(NO_TIER, 0.0, 30, 9.0), ("write through", 0.9, 60, 8.0), ("before eviction", 0.9, 70, 7.0),
            ("write through", 3.7, 30, 9.5), ("before eviction", 3.7, 40, 9.6)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["rule", "live_over_dram", "found_percent", "mean_e2e_s"])
    table.to_csv(tmp_path / "table.csv")
    findings = load("store_rules").findings(table)
    check_drawing(load("store_rules").draw(tmp_path / "table.csv"), findings, request)
    said = {one.quantity: one.simulated for one in findings[-3:]}
    assert list(said.values()) == ["yes", "yes", "no"]


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
