"""A summary names what reads the future, which no real server can."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from testbed import capacity, simulate
from testbed.core.request import Request
from testbed.experiments.cli.capacity_lines import lines_of
from testbed.experiments.cli.json_answers import capacity_answer
from testbed.experiments.look.memory_map.map_page import retrace, title_of
from testbed.experiments.paper.futures import FUTURE, futures_of, with_futures
from testbed.experiments.paper.reproduction import load, perform
from testbed.experiments.paper.studies.study import Task
from testbed.experiments.runs.points import Point
from testbed.experiments.runs.run_store import RunStore
from testbed.experiments.runs.run_words import run_words
from testbed.experiments.runs.sweep_table import shown
from testbed.memory.contiguous.reservations import ContiguousOracle
from testbed.study.capacity_search import Capacities

SHORT = {"rate": 1, "duration_s": 3}


@pytest.mark.parametrize("policy", ["contiguous_oracle", ContiguousOracle])
def test_an_oracle_of_output_lengths_is_named(policy):
    run = simulate(policy=policy, **SHORT).summary["run"]
    assert run["future_read"] == "policy: true output lengths"
    assert run_words(run)["reads the future"] == run["future_read"]


def test_an_eviction_order_that_foresees_prompts_is_named():
    requests = [
        Request(i, arrival_ps=i, prompt_len=32, output_len=2, prompt_ids=tuple(range(32)))
        for i in range(2)
    ]
    words = ("policy=prefix_caching", "eviction@policy.eviction=belady")
    run = simulate(*words, trace=requests).summary["run"]
    assert run["future_read"] == "policy.eviction: the prompts to come"


def test_table_of_a_sweep_names_the_points_that_read_the_future():
    points = [
        Point({"policy": policy}, simulate(policy=policy, **SHORT).summary, policy)
        for policy in ("paged", "contiguous_oracle")
    ]
    console = Console(width=200, record=True)
    console.print(shown(points, 200, ["policy"]))
    lines = console.export_text().splitlines()
    assert [line.split()[1] for line in lines if "true output lengths" in line] == [
        "contiguous_oracle"
    ]


def test_a_capacity_that_rests_on_the_future_says_so():
    options = {"ttft_s": 5.0, "low": 1.0, "high": 2.0, "precision": 1.0, "duration_s": 10}
    oracle = capacity(policy="contiguous_oracle", **options)
    assert oracle.future_read == "policy: true output lengths"
    answer = capacity_answer(Capacities({0: oracle}), {})
    assert answer.future_read == oracle.future_read
    assert any(oracle.future_read in line for line in lines_of(answer))
    plain = Capacities({0: capacity(policy="paged", **options)})
    assert plain.of_seed[0].future_read == ""
    assert not any("future" in line for line in lines_of(capacity_answer(plain, {})))


def test_tables_of_a_reproduction_have_a_column_of_what_reads_the_future(tmp_path):
    def served(policy, store):
        run = store.measure([f"policy={policy}", "arrivals.duration_s=5", "outputs=summary"])
        return [{"system": policy, "run": run.run_id}, {"system": policy, "run": ""}]

    groups = [
        [Task(policy, partial(served, policy)) for policy in policies]
        for policies in (("paged", "contiguous_oracle"), ("paged",))
    ]
    mixed, plain = perform(groups, RunStore(tmp_path), 1)
    lengths = "policy: true output lengths"
    assert mixed[FUTURE].tolist() == ["", "", lengths, lengths]
    assert FUTURE not in plain
    assert futures_of([mixed, plain]) == {"contiguous_oracle": lengths}
    card = with_futures(
        pd.DataFrame({"system": ["paged vs contiguous_oracle", "paged"]}),
        futures_of([mixed, plain]),
    )
    assert card[FUTURE].tolist() == [f"contiguous_oracle: {lengths}", ""]


def test_orders_that_a_study_replays_are_named_in_its_rows():
    study = load("mooncake")
    chats = {
        "overrides": [*study.traces["chat_histories"]["overrides"], "arrivals.duration_s=5"],
        "replay_blocks": [100],
    }
    study = replace(study, traces={"chat_histories": chats})
    for order, read in (("lru", ""), ("belady", "policy.eviction: the prompts to come")):
        (row,) = study.replayed(RunStore(Path("unused")), order)
        assert row[FUTURE] == read


def test_a_memory_map_of_an_oracle_says_so():
    for policy, says in (("contiguous_oracle", True), ("paged", False)):
        config = simulate(policy=policy, **SHORT).setup.config
        assert ("true output lengths" in title_of(retrace(config, 0.0, None), config)) is says


def test_nothing_is_said_of_other_policies():
    run = simulate(policy="paged", **SHORT).summary["run"]
    assert run["future_read"] is None
    assert "reads the future" not in run_words(run)
