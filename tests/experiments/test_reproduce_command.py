"""`testbed reproduce`: tables, figures, scorecard, alternatives to choices, and how sustained rates
are found.
"""

import json
import subprocess
from dataclasses import replace
from functools import partial
from socket import gethostname

import numpy as np
import pandas as pd
import pytest
from refusals import check_words, refuses

from testbed.core.errors import InputError
from testbed.experiments.cli.reproduce import available, chosen, whole_figures
from testbed.experiments.paper import reproduction
from testbed.experiments.paper.reproduction import load, perform, run_alternatives
from testbed.experiments.paper.scorecard import KEY, TURNS, scorecard, with_lengths
from testbed.experiments.paper.scorecard_words import PICKLE, heading, remarks, result_of
from testbed.experiments.paper.studies.curves import interval
from testbed.experiments.paper.studies.study import Finding, Task
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.run_store import RunStore
from testbed.experiments.runs.whole_files import MARK
from testbed.study.knee import bracket, sustained_rate


def test_panel_of_a_figure_is_its_whole_figure():
    assert chosen(["fig12a", "fig18b", "fig12"]) == ["fig12", "fig18"]
    refuses("fig99a", chosen, ["fig99a"])


@pytest.fixture
def card(testbed, tmp_path):
    def reproduce(*figures):
        output = testbed.done("reproduce", *figures, "--out", "out", "--jobs", "1")
        assert "Scorecard" in output
        return pd.read_csv(tmp_path / "out" / "scorecard.csv", keep_default_na=False)

    return reproduce


def error_points(card):
    return card["error"].str.removesuffix(" points").astype(float).abs()


def test_fig2_is_close_and_reuses_finished_runs(card, tmp_path):
    out = tmp_path / "out"
    rows = card("fig2")
    assert len(rows) == 14
    assert error_points(rows).max() < 2.5
    missed = rows[rows["verdict"] == "miss"][["figure", "setting", "system", "quantity"]]
    place = ("fig2", "opt-13b sharegpt")  # inside with the paper's lengths
    assert set(missed.itertuples(index=False, name=None)) == {
        (*place, "orca-max", "internal_fragmentation"),
        (*place, "orca-pow2", "token_states"),
        (*place, "orca-oracle", "reservation"),
    }
    runs, files = times_of_runs(out), files_of_fig2(out)
    assert len(runs) == 4
    assert len(files) == 3
    card("fig2")
    assert times_of_runs(out) == runs
    assert files_of_fig2(out) == files


def check_column_of_h200(rows, out):
    """The profile's GPU has numbers of its own if costs matter, and drawings of its own."""
    rows = rows.set_index("figure")
    there = rows["simulated on h200"]
    assert set(there["table1"]) == {""}  # arithmetic, no costs
    assert (there["fig2"].astype(float) != rows["simulated"]["fig2"].astype(float)).any()
    assert (out / "h200" / "fig2.png").is_file()
    summaries = [json.loads(path.read_text()) for path in out.glob("runs/*/summary.json")]
    costs = {summary["run"]["cost"] for summary in summaries}
    assert any(
        "measured on NVIDIA H200" in cost and "software time of sosp23" in cost for cost in costs
    )


def times_of_runs(out):
    return {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}


def files_of_fig2(out):
    return {path: path.read_bytes() for path in out.glob("fig2.*")}


def test_studies_of_a_server_of_their_own_are_not_repeated_on_the_gpu_of_a_profile(
    testbed, tmp_path, monkeypatch
):
    ran = []

    def run_studies(studies, store, *_):
        ran.append((store.profile, studies))
        return []

    monkeypatch.setattr(reproduction, "run_studies", run_studies)
    place = (
        "fig18a",
        "attention kernel batch 8 and 32 context 64..256",
        "paged vs contiguous",
        "kernel_overhead",
    )
    kernels = Finding(*place, (22.0, 24.0))
    monkeypatch.setattr(reproduction, "score", lambda *_: scorecard([kernels], ["fig18a"]))
    testbed.done("reproduce", "fig2", "agent_sessions", "--profile", "h200-llama-13b-tp1")
    ran = [(profile, [study.name for study in studies]) for profile, studies in ran]
    assert ran == [(None, ["fig2", "agent_sessions"]), ("h200-llama-13b-tp1", ["fig2"])]
    card = pd.read_csv(tmp_path / "results" / "scorecard.csv")
    assert (card["simulated"].any(), card["simulated on h200"].any()) == (True, False)


def test_a_trace_that_the_user_must_give_is_asked_for_before_the_first_run(testbed, tmp_path):
    line = testbed.refused("reproduce", "fig2", "tiers", "--jobs", "1")
    assert "--lengths mooncake=FILE or --lengths agent_sessions=FILE" in line
    assert not list(tmp_path.rglob("*.csv")), "fig2 ran, for nothing"


def with_few_arrivals(name, overrides=()):
    """A study whose runs take 15 seconds of arrivals."""
    study = load(name, overrides)
    return replace(study, common=[*study.common, "arrivals.duration_s=15", "window_s=[5,15]"])


def test_a_file_of_lengths_replaces_its_model_and_a_profile_has_a_column_of_its_gpu(
    card, tmp_path, monkeypatch
):
    monkeypatch.setattr(reproduction, "load", with_few_arrivals)
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n128,64\n64,32\n")
    words = ("--lengths", "sharegpt=lengths.csv", "--profile", "h200-llama-13b-tp1")
    rows, out = card("table1", "fig2", *words), tmp_path / "out"
    check_column_of_h200(rows, out)
    summaries = [json.loads(path.read_text()) for path in times_of_runs(out)]
    assert len(summaries) == 8  # of two GPUs
    assert {"lengths.csv" in summary["run"]["trace"] for summary in summaries} == {True}


def test_a_prefix_that_a_model_has_goes_to_the_file_that_replaces_it(tmp_path):
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n128,64\n")
    store = RunStore(tmp_path, lengths=(("sharegpt", str(tmp_path / "lengths.csv")),))
    assert set(store.config(("trace=sharegpt",)).trace.parameters) == {"path"}
    with pytest.raises(InputError, match="registered_prefix"):
        store.config(("trace=sharegpt", "trace.registered_prefix=8")).trace.make("trace")


@pytest.mark.slow
def test_fig13_is_close_with_embedded_lengths(card):
    rows = card("fig13")
    scored = rows[rows["error"] != ""]
    errors = scored["error"].str.removesuffix("%").astype(float).abs()
    assert len(scored) == 10
    assert errors[scored["figure"] == "fig13a"].max() < 8
    assert errors[scored["figure"] == "fig13b"].max() < 12
    assert set(rows[rows["role"] == "calibrate"]["verdict"]) == {""}


MISSED = ("fig13a", "s", "vllm", "batch"), ("fig12", "sharegpt", "", "ratio")


def card_of(*misses, replayed=()):
    names = ("figure", "setting", "system", "quantity", "part", "verdict", "before", "cause")
    rows = [
        dict(zip(names, (*key, "memory", "miss", "miss", "why"), strict=True)) for key in misses
    ]
    return with_lengths(pd.DataFrame(rows, columns=names), replayed)


def test_a_miss_with_other_lengths_than_the_papers_is_not_judged():
    card = card_of(*MISSED)
    assert [result_of(row) for row in card.to_dict("records")] == ["outside", "not judged"]
    check_words(("not the same rows", "1 results outside their tolerance"), " ".join(heading(card)))
    causes, lengths = remarks(card, (), ["fig2"])
    assert causes == "fig13a vllm: batch: why"
    assert f"testbed import lengths {PICKLE} sharegpt.csv" in lengths


def test_a_miss_with_the_papers_lengths_has_its_cause():
    card = card_of(*MISSED, replayed=["sharegpt"])
    assert {result_of(row) for row in card.to_dict("records")} == {"outside"}
    assert len(list(heading(card))) == 1
    causes = list(remarks(card, ["sharegpt"], ["fig2"]))
    assert causes == ["fig13a vllm: batch: why", "fig12 ratio: why"]
    assert list(remarks(card_of(), ["sharegpt"], ["fig2"])) == []
    assert list(remarks(card_of(), [], ["tiers"])) == []  # judges no published number


def test_a_panel_is_said_to_be_run_with_its_whole_figure():
    (line,) = whole_figures(["fig12a", "fig18", "all"])
    check_words(("fig12a", "panel of fig12", "whole"), line)


FIG12 = ("fig12", "opt-66b sharegpt", "vllm vs orca-max", "sustained_rate_ratio")


ALTERNATIVES = reproduction.alternatives()


@pytest.fixture(scope="module")
def studies():
    """Those of the paper."""
    return {name: load(name) for name in available()[:12]}


@pytest.mark.parametrize("other", ALTERNATIVES, ids=lambda other: other.name)
def test_an_alternative_runs_the_systems_of_the_rows_that_it_may_turn(other, studies):
    """Or says why it is not run."""
    assert bool(other.not_run) != bool(other.run or other.figure)
    assert other.row_keys()
    chat = ["trace=chat"] if "fig17" in other.rows else []
    composed("run", ("+protocol=sosp23", "+system=vllm", *chat, *other.run))
    if other.not_run:
        return
    covering = [name for name, study in studies.items() if set(study.covers) & set(other.rows)]
    assert covering
    for name in covering:
        study = load(name, other.figure) if other.figure else studies[name]
        assert (study != studies[name]) == bool(other.figure)
        tasks = study.only(other.row_keys()).tasks(1)
        assert tasks
        for task in tasks:
            label = reproduction.under(task, other.run).label
            assert all(word in label for word in other.run)


def test_alternatives_have_names_of_their_own_and_those_not_run_are_listed():
    names = [other.name for other in ALTERNATIVES]
    assert len(set(names)) == len(names)
    listed = list(map(str, reproduction.not_run()))
    for other in ALTERNATIVES:
        assert any(other.name in line for line in listed) == bool(other.not_run)


def test_an_alternative_of_rows_that_are_not_judged_is_refused():
    unknown = reproduction.Alternative("x", {"fig2": ["opt-13b sharegpt", "b"], "fig1": ["c"]})
    refuses(r"x: no judged row of \('fig1', 'c'\) in \['figure', ", unknown.row_keys)


def test_tasks_of_groups_share_workers_and_one_that_fails_is_named(tmp_path):
    worker = subprocess.Popen(["true"])
    worker.wait()
    left = tmp_path / f".run@{gethostname()}@{worker.pid}@0{MARK}"
    left.mkdir()  # as a worker that was stopped leaves it
    tasks, done = (
        [Task("one", lambda store: [{"a": 1}, {"a": 2}]), Task("two", lambda store: [{"a": 3}])],
        [],
    )
    tables = perform(
        [tasks, [], tasks[:1]], RunStore(tmp_path), 2, lambda number, table: done.append(number)
    )
    assert [table.to_dict("list") for table in tables] == [{"a": [1, 2, 3]}, {}, {"a": [1, 2]}]
    assert (sorted(done), left.exists()) == ([0, 2], False)
    wrong = [[Task("three", lambda store: [1 / 0])]]
    refuses("three: ZeroDivisionError: division by zero", perform, wrong, RunStore(tmp_path), 1)


def test_an_alternative_is_compared_row_by_row(tmp_path, monkeypatch):
    rows = {"fig19a": ["block sizes 1..256"]}
    other = reproduction.Alternative("shown as it is", rows, figure=("figure.drawn_share=1.0",))
    left = reproduction.Alternative("left", {"fig18b": ["opt-13b alpaca"]}, not_run="not measured")
    monkeypatch.setattr(reproduction, "alternatives", lambda: [other, left])
    table = run_alternatives(
        ["fig19"], partial(perform, store=RunStore(tmp_path), jobs=1)
    ).set_index("system")
    assert table.loc["recompute", "other"] != table.loc["recompute", "chosen"]
    assert list(table["turns"]) == ["no", "no", "not run"]


def test_scorecard_marks_rows_sensitive_to_alternatives(tmp_path):
    rows = [
        dict(zip(KEY, FIG12, strict=True)) | {"alternative": name, "turns": turns}
        for name, turns in (("a", "yes"), ("b", "no"), ("c", "yes"))
    ]
    pd.DataFrame(rows).to_csv(tmp_path / reproduction.ALTERNATIVES_FILE, index=False)
    card = scorecard([Finding(*FIG12, 3.0)], ["fig12"])
    card = reproduction.annotated(card, tmp_path).set_index(KEY)
    assert card.loc[FIG12, TURNS] == "a; c"
    assert set(card.drop(index=[FIG12])[TURNS]) == {""}


GRID = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("knee", [0.13, 0.99, 1.5, 2.71, 3.3, 17.0])
def test_bisection_finds_the_sustained_rate(knee):
    def is_sustained(rate):
        return rate < knee

    sustained = sustained_rate(is_sustained, *bracket(GRID, is_sustained), precision=0.01)
    assert sustained == pytest.approx(knee, rel=0.01)


@pytest.mark.parametrize(
    ("knee", "pair"), [(2.5, (2, 3)), (0.5, (0.8, 1)), (9, (4, 5)), (1, (0.8, 1))]
)
def test_bracket_is_the_pair_of_rates_around_the_knee(knee, pair):
    assert bracket(GRID, lambda rate: rate < knee) == pytest.approx(pair)


def test_confidence_interval_of_three_values():
    assert interval(np.array([1.0, 2.0, 3.0]), 0.0) == "-0.48 to 4.48"
    halves = [
        "12.71",
        "2.48",
        "1.30",
        "0.88",
        "0.66",
        "0.53",
        "0.45",
        "0.38",
        "0.34",
    ]  # Student's t of 2 to 10 values
    intervals = [interval(np.array([-1.0, 1.0, *[0.0] * more]), 0.0) for more in range(9)]
    assert intervals == [f"-{half} to {half}" for half in halves]
    assert not interval(np.array([1.0]), 0.0)
    assert interval(np.array([2.0, 2.0, 2.0]), 0.05) == "1.90 to 2.10"
