"""Alternatives to choices: they name rows and options that exist, and the scorecard takes them up."""

from functools import partial

import pandas as pd
import pytest

from testbed.experiments.commands.reproduce import available
from testbed.experiments.paper import reproduction
from testbed.experiments.paper.reproduction import load, perform, run_alternatives
from testbed.experiments.paper.scorecard import KEY, TURNS, scorecard
from testbed.experiments.paper.studies.study import Finding
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.run_store import RunStore

FIG12 = ("fig12", "opt-66b sharegpt", "vllm vs orca-max", "sustained_rate_ratio")


@pytest.mark.parametrize("other", reproduction.alternatives(), ids=lambda other: other.name)
def test_alternatives_name_judged_rows_and_valid_options(other):
    assert other.row_keys()
    assert bool(other.not_run) != bool(other.run or other.figure)
    composed(
        "run", ("+protocol=sosp23", "+system=vllm", *(["trace=chat"] if "fig17" in other.rows else []), *other.run)
    )
    if other.figure:
        study = next(load(name) for name in available() if set(load(name).covers) & set(other.rows))
        assert load(study.name, other.figure) != study


def test_only_the_curves_of_a_row_are_run():
    study = load("fig12").only([FIG12])
    assert [task.label for task in study.tasks(1)] == [
        "fig12b opt-66b sharegpt orca-max",
        "fig12b opt-66b sharegpt vllm",
    ]


def test_every_recovery_alternative_has_a_cost(tmp_path):
    """The costs next to the paper's machine are of other GPUs, which need not have the same options."""
    touching = [other for other in reproduction.alternatives() if "fig19a" in other.rows and other.run]
    assert touching
    for other in touching:
        study = load("fig19").only([key for key in other.row_keys() if key[0] == "fig19a"])
        study.block_sizes = [16]
        (task,) = study.tasks(1)
        assert reproduction.under(task, other.run).work(RunStore(tmp_path))


def test_an_alternative_is_compared_row_by_row(tmp_path, monkeypatch):
    other = reproduction.Alternative(
        "shown as it is", {"fig19a": ["block sizes 1..256"]}, figure=("figure.drawn_share=1.0",)
    )
    left = reproduction.Alternative("left", {"fig18b": ["opt-13b alpaca"]}, not_run="nobody measured it")
    monkeypatch.setattr(reproduction, "alternatives", lambda: [other, left])
    table = run_alternatives(["fig19"], partial(perform, store=RunStore(tmp_path), jobs=1)).set_index("system")
    assert table.loc["recompute", "other"] != table.loc["recompute", "chosen"]
    assert list(table["turns"]) == ["no", "no", "not run"]


def test_run_store_overrides_take_precedence():
    store = RunStore("nowhere", overrides=("arrivals.rate=1.5", "scheduler=separate"))
    config = store.config(("+system=vllm", "arrivals.rate=2"))
    assert config.arrivals.parameters["rate"] == 1.5
    assert config.scheduler.name.endswith("SeparatePrefill")


def test_scorecard_marks_rows_sensitive_to_alternatives(tmp_path):
    rows = [dict(zip(KEY, FIG12, strict=True)) | {"alternative": name, "turns": turns} for name, turns in
            (("a", "yes"), ("b", "no"), ("c", "yes"))]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / reproduction.ALTERNATIVES_FILE, index=False)
    card = scorecard([Finding(*FIG12, 3.0)], ["fig12"])
    card = reproduction.annotated(card, tmp_path).set_index(KEY)
    assert card.loc[FIG12, TURNS] == "a; c"
    assert set(card.drop(index=[FIG12])[TURNS]) == {""}
