"""Alternatives to choices and seeds: they name rows and options that exist, and the scorecard takes them up."""

from functools import partial

import pandas as pd
import pytest

from experiments.commands.reproduce import beside, load
from experiments.paper import alternatives, seeds
from experiments.paper.scorecard import KEY, TURNS, scorecard
from experiments.paper.studies.study import Finding
from experiments.runs.lab import Lab, composed
from experiments.runs.workers import perform

FIG12 = ("fig12", "opt-66b sharegpt", "vllm vs orca-max", "sustained_rate_ratio")


@pytest.mark.parametrize("other", alternatives.alternatives(), ids=lambda other: other.name)
def test_every_alternative_names_judged_rows_and_options(other):
    assert other.row_keys()
    assert bool(other.not_run) != bool(other.run or other.figure)
    composed(
        "run", ("+protocol=sosp23", "+system=vllm", *(["trace=chat"] if "fig17" in other.rows else []), *other.run)
    )
    if other.figure:
        assert load("fig19", other.figure).drawn_share == 1.0


def test_curves_do_no_more_than_a_row_takes():
    study = load("fig12").only([FIG12])
    assert [task.label for task in study.tasks(1)] == [
        "fig12b opt-66b sharegpt orca-max",
        "fig12b opt-66b sharegpt vllm",
    ]


def test_every_alternative_of_a_recovery_has_a_price(tmp_path):
    """The prices that stand beside the paper's machine are of other GPUs, which need not have the same options."""
    touching = [other for other in alternatives.alternatives() if "fig19a" in other.rows and other.run]
    assert touching
    for other in touching:
        study = load("fig19").only([key for key in other.row_keys() if key[0] == "fig19a"])
        study.block_sizes = [16]
        (task,) = study.tasks(1)
        assert alternatives.under(task, other.run).work(Lab(tmp_path))


def test_an_alternative_is_compared_row_by_row(tmp_path, monkeypatch):
    other = alternatives.Alternative(
        "shown as it is", {"fig19a": ["block sizes 1..256"]}, figure=("figure.drawn_share=1.0",)
    )
    left = alternatives.Alternative("left", {"fig18b": ["opt-13b alpaca"]}, not_run="nobody measured it")
    monkeypatch.setattr(alternatives, "alternatives", lambda: [other, left])
    table = beside("alternatives", partial(perform, lab=Lab(tmp_path), jobs=1), None).set_index("system")
    assert table.loc["recompute", "other"] != table.loc["recompute", "chosen"]
    assert list(table["turns"]) == ["no", "no", "not run"]


def test_overrides_of_a_lab_come_last():
    lab = Lab("nowhere", overrides=("arrivals.rate=1.5", "scheduler=separate"))
    config = lab.config(("+system=vllm", "arrivals.rate=2"))
    assert config.arrivals.rate == 1.5
    assert config.scheduler._target_.endswith("SeparatePrefill")


def test_the_scorecard_marks_rows_that_turn_and_shows_what_seeds_do(tmp_path):
    rows = [dict(zip(KEY, FIG12, strict=True)) | {"alternative": name, "turns": turns} for name, turns in
            (("a", "yes"), ("b", "no"), ("c", "yes"))]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / alternatives.FILE, index=False)
    pd.DataFrame([dict(zip(KEY, FIG12, strict=True)) | {"margin_interval": "0.1 to 0.3"}]).to_csv(
        tmp_path / seeds.FILE, index=False
    )
    card = scorecard([Finding(*FIG12, 3.0)], ["fig12"])
    card = alternatives.marked(seeds.with_intervals(card, tmp_path), tmp_path).set_index(KEY)
    assert card.loc[FIG12, TURNS] == "a; c"
    assert card.loc[FIG12, "interval"] == "margin 0.1 to 0.3"
    assert set(card.drop(index=[FIG12])[TURNS]) == {""}


def test_price_rows_are_measured_by_seed(tmp_path):
    study = load("fig19")
    study.covers, study.block_sizes = ("fig19a",), [1, 256]
    prices = seeds.over_seeds([study], partial(perform, lab=Lab(tmp_path), jobs=1), 2)
    assert set(prices["figure"]) == {"fig19a"}
    assert set(prices["seeds"]) == {2}
    assert prices["mean_margin"].notna().all()
