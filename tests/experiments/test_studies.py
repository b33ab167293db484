"""Every study on a tiny setting: the series of its figure and its findings are a snapshot; some
also by hand.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest
from drawings import numbers_of, overlapping_labels, series_of
from refusals import refuses

from testbed.experiments.paper.reproduction import load
from testbed.experiments.paper.studies.open_sessions import NO_TIER
from testbed.experiments.paper.studies.prefix_cache import with_pool
from testbed.experiments.runs.compose import CONF
from testbed.experiments.runs.run_store import RunStore
from testbed.run.build import build

SESSIONS = (("agent_sessions", str(CONF.parent / "examples" / "sessions.jsonl")),)
MOONCAKE = Path(__file__).parents[1] / "inputs" / "mooncake.jsonl"
FILES = (*SESSIONS, ("mooncake", str(MOONCAKE)))
TWO = ("trace.num_sessions=2", "arrivals.at_once=2")  # sessions


def small(name, *words, **changes):
    """The study with these options of its runs more, and these values."""
    study = load(name)
    return replace(study, common=[*study.common, *words], **changes)


def curves():
    """Few seconds and a low limit, so that every system has a knee."""
    panels = [
        {**panel, "rates": {"orca-oracle": [4, 16], "vllm": [4, 32]}}
        for panel in load("fig16").panels
    ]
    changes = {"limit": 0.05, "precision": 0.5, "num_seeds": 1, "panels": panels}
    return small("fig16", "arrivals.duration_s=10", **changes)


def prefixes():
    chats = load("mooncake").traces["chat_histories"]
    chats = {
        "overrides": [*chats["overrides"], "arrivals.duration_s=10"],
        "replay_blocks": [100, 1000],
    }
    return small("mooncake", orders=("lru", "belady"), traces={"chat_histories": chats})


def tiers():
    traces = load("tiers").traces
    traces = {**traces, "agent_sessions": [*traces["agent_sessions"], *TWO], "none given": []}
    pools = "server.kv_memory_gib={llama-3-8b: 2, llama-3-70b: 64}"
    return small("tiers", pools, traces=traces, dram_gib=[1])


def groups():
    study = load("groups")
    common = [word for word in study.common if "kv_memory" not in word]
    pools = "+server.kv_memory_gib={gemma-3-27b: 2, nemotron-h-8b: 2}"
    changes = {
        "models": ["gemma-3-27b", "nemotron-h-8b"],
        "traces": {"mooncake": ["trace=mooncake"]},
    }
    return replace(study, common=[*common, pools], **changes)


def routers():
    """Two settings, one of which replays the small trace, and a router of each kind."""
    study, names = load("routers"), ("round_robin", "prefix_aware 0.03", "balanced_prefix 50000")
    words = {
        "conversation": ["trace.num_requests=null"],
        "shared prefix": ["arrivals.num_requests=12"],
    }
    settings = {
        name: study.settings[name]
        | {"routers": names, "overrides": [*study.settings[name]["overrides"], *more]}
        for name, more in words.items()
    }
    return replace(study, settings=settings)


SHORT = ("arrivals.duration_s=12", "window_s=[6,12]")
STUDIES = {
    "table1": lambda: load("table1"),
    "fig1": lambda: small("fig1", "arrivals.duration_s=60", "window_s=[30,60]", batch_sizes=(2, 4)),
    "fig11": lambda: replace(
        load("fig11"), num_rows=2000, bins={"sharegpt": [0, 2000, 400], "alpaca": [9, 13, 1]}
    ),
    "fig13": lambda: small("fig13", *SHORT, systems=["orca-max", "orca-oracle", "vllm"]),
    "fig15": lambda: small(
        "fig15",
        "arrivals.duration_s=6",
        "window_s=[3,6]",
        "cost.software.overhead_per_sequence_s=0",  # a slow server has no batch yet
    ),
    "fig16": curves,
    "fig18": lambda: small("fig18", "arrivals.duration_s=5", block_sizes=(16, 64)),
    "fig19": lambda: small(
        "fig19",
        "arrivals.duration_s=10",
        "server.kv_memory_gib={opt-13b:2}",
        block_sizes=(16, 128),
    ),
    "mooncake": prefixes,
    "mooncake of a file": lambda: replace(
        load("mooncake"),
        traces={
            name: {**trace, "replay_blocks": [10, 40]}
            for name, trace in load("mooncake").traces.items()
        },
    ),
    "speculation": lambda: small(
        "speculation",
        "arrivals.duration_s=4",
        drafters={"EAGLE-3": ["speculation=eagle3"]},
        acceptances=[0.7],
        num_drafts=[2],
        rates=[1, 3],
    ),
    "groups": groups,
    "time_to_live": lambda: small(
        "time_to_live",
        *TWO,
        times_s=[1e-3, 1],
        device_share=2,
        systems={"program order": ["scheduler=chunked", "order=by_session"]},
    ),
    "store_rules": lambda: small(
        "store_rules",
        *TWO,
        device_share=2,
        live_over_dram=[0.9, 3.7],
        rules={
            name: load("store_rules").rules[name] for name in ("write through", "before eviction")
        },
    ),
    "global_cache": lambda: small(
        "global_cache", "server.kv_memory_gib={llama-3-8b: 2}", tokens_per_node=20_000, nodes=[2]
    ),
    "routers": routers,
    "agent_sessions": lambda: small(
        "agent_sessions", *TWO, pool_blocks=[1000, 2000], orders=("lru", "belady")
    ),
    "tiers": tiers,
}


@pytest.mark.parametrize("name", STUDIES)
def test_figure_and_findings_of_a_study(name, tmp_path, snapshot):
    study, path = STUDIES[name](), tmp_path / "table.csv"
    rows = [
        row for task in study.tasks(None) for row in task.work(RunStore(tmp_path / "runs", FILES))
    ]
    if name[:3] not in ("fig", "tab"):  # all that is drawn may be of one trace, model and size
        pd.DataFrame(rows[:1]).to_csv(path, index=False)
        study.draw(path)
    pd.DataFrame(rows).to_csv(path, index=False)
    figure, table = study.draw(path), pd.read_csv(path)
    assert not overlapping_labels(figure)
    assert name[:3] != "fig" or figure.get_figwidth() <= 3.3 * len(
        {axes.get_position().x0 for axes in figure.axes}
    )
    findings = "\n".join(map(numbers_of, study.findings(table)))
    assert f"{series_of(figure)}\n\n{findings}" == snapshot


def made_up_rate(panel, system, seed):
    """A rate that grows by setting and system, with seeds apart by some percent."""
    return (2 + panel) ** (1 + system) * (1 + 0.02 * seed * (1 + system))


SEEDS = range(3)


@pytest.fixture
def findings_of():
    """The findings of a study whose sustained rates are made up, and these rates."""

    def call(name):
        study, rates = load(name), {}
        for i, panel in enumerate(study.panels):
            for j, system in enumerate(panel["rates"]):
                for seed in SEEDS:
                    rates[panel["setting"], system, seed] = made_up_rate(i, j, seed)
        rows = [
            {
                "setting": setting,
                "system": system,
                "seed": seed,
                "quantity": "sustained_rate",
                "simulated": rate,
            }
            for (setting, system, seed), rate in rates.items()
        ]
        return study.findings(pd.DataFrame(rows)), rates

    return call


@pytest.mark.parametrize(("name", "count"), [("fig12", 9), ("fig14", 7), ("fig16", 2)])
def test_published_ratios_are_means_over_seeds_of_ratios_of_sustained_rates(
    findings_of, name, count
):
    findings, rates = findings_of(name)
    checked = 0
    for finding in findings:
        system, _, other = finding.system.partition(" vs ")
        if finding.quantity != "sustained_rate_ratio" or (finding.setting, other, 0) not in rates:
            continue
        ratios = [
            rates[finding.setting, system, seed] / rates[finding.setting, other, seed]
            for seed in SEEDS
        ]
        assert finding.simulated == pytest.approx(fmean(ratios)), finding.setting
        checked += 1
    assert checked == count


def test_largest_ratio_and_the_range_of_ratios_are_over_all_settings(findings_of):
    findings = {finding[:4]: finding for finding in findings_of("fig12")[0]}
    by_setting = {
        (setting, system): finding.simulated
        for (_, setting, system, quantity), finding in findings.items()
        if quantity == "sustained_rate_ratio"
    }
    models = [f"{model} sharegpt" for model in ("opt-13b", "opt-66b", "opt-175b")]
    slowest = findings["fig12", "sharegpt", "vllm vs fastertransformer", "sustained_rate_ratio_max"]
    assert slowest.simulated == by_setting["opt-175b sharegpt", "vllm vs fastertransformer"]
    assert slowest.note == "of opt-175b sharegpt"
    ends = findings["fig12", "sharegpt", "vllm vs orca-max", "sustained_rate_ratio_ends"]
    assert list(ends.simulated) == [by_setting[model, "vllm vs orca-max"] for model in models]
    means = findings["fig12", "sharegpt", "vllm vs each orca", "sustained_rate_ratio_mean"]
    assert means.simulated[0] == pytest.approx(fmean(ends.simulated))


def test_a_ratio_that_falls_where_it_should_rise_has_a_negative_margin(findings_of):
    findings = {finding.quantity + finding.setting: finding for finding in findings_of("fig14")[0]}
    parallel = findings["sustained_rate_ratio_growsopt-13b alpaca parallel 1..6"]
    assert parallel.simulated == "8.15 to 2.04, 2.04 to 3.05, 3.05 to 4.07"
    assert parallel.margin < 0
    beams = findings["sustained_rate_ratio_aboveopt-13b alpaca beam over parallel 2..6"]
    assert beams.margin > 0


def test_store_rules_study_sizes_tier_and_pool_by_the_live_set(tmp_path):
    study = load("store_rules")
    refuses("give --lengths agent_sessions=FILE", study.served, RunStore(tmp_path), NO_TIER, 0.0)
    store = RunStore(tmp_path, SESSIONS)
    tier = [study.ruled(store, "write back", ratio)[1] for ratio in (0.9, 1.8)]
    assert tier[0] == pytest.approx(2 * tier[1])
    config, none = study.ruled(store, NO_TIER, 0.0)
    assert none == 0
    assert config.server.kv_memory_gib["llama-3-8b"] == pytest.approx(0.3 * 0.9 * tier[0])


def test_claims_of_lmcache_are_judged_from_the_table():
    rows = [
        (NO_TIER, 0.0, 30, 9.0),
        ("write through", 0.9, 60, 8.0),
        ("before eviction", 0.9, 70, 7.0),
        ("write through", 3.7, 30, 9.5),
        ("before eviction", 3.7, 40, 9.6),
    ]
    table = pd.DataFrame(rows, columns=["rule", "live_over_dram", "found_percent", "mean_e2e_s"])
    claims = [finding.simulated for finding in load("store_rules").findings(table)[-3:]]
    assert claims == ["yes", "yes", "no"]


def test_agent_sessions_have_room_for_twice_the_memory_of_four_gpus():
    study = load("agent_sessions")
    config = study.config("lru", dict(SESSIONS)["agent_sessions"])
    pools = [build(with_pool(config, number)).pool for number in study.pool_blocks]
    assert [pool.num_slots // 256 for pool in pools] == [2530, 5060, 10120]
