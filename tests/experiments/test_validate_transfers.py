"""The engine's swaps, stores and loads against their simulation, on kept rows; kept all-reduces against the model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import testbed.kernels
from testbed.cost.nearest import Known, profiles_at_hand
from testbed.experiments.commands.validations import validate_transfers
from testbed.experiments.importers.known_shapes import gpu_named
from testbed.experiments.validation import left_out
from testbed.experiments.validation.software_fit import Point, descend, uncertainty
from testbed.experiments.validation.transfers import engine_transfers

RESULTS = Path(testbed.kernels.__file__).resolve().parent / "results"
RUNS = sorted(path.parent for path in (RESULTS / "engine" / "swaps").glob("*/swaps.csv"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_simulated_transfers_take_what_the_engine_s_took(run, monkeypatch):
    """All transfers of a run together within 10%."""
    monkeypatch.chdir(RESULTS.parents[1])  # the config names the requests from here
    lines = engine_transfers(run)
    measured, simulated = (sum(float(line[at].split()[0]) for line in lines) for at in (4, 6))
    assert simulated == pytest.approx(measured, rel=0.1)
    assert len(lines) == 2, "both ways are compared"
    assert sum(int(line[2]) for line in lines) >= 80


def test_both_tables_are_printed(monkeypatch, capsys):
    monkeypatch.chdir(RESULTS.parents[1])
    validate_transfers([str(RUNS[0])])
    printed = capsys.readouterr().out
    assert "held back" in printed
    assert f"{RUNS[0].name}  in" in printed
    refuses("--gpu l4: names no measured transfers", validate_transfers, ["--gpu", "l4"])


@pytest.fixture(scope="module")
def shipped():
    return {one.profile["model"]["name"]: one for one in profiles_at_hand(None, [gpu_named("h200")])}


def test_it_is_predicted_from_the_others_by_every_way(shipped):
    rows = {row["way"]: row for row in left_out.tested(list(shipped.values()), [shipped["llama-3-8b"]])}
    assert set(rows) == {"other model", "roofline"}
    found = rows["other model"]
    assert found["source_model"] != "llama-3-8b"
    assert 0 < found["decode_percent"] < 15
    assert abs(found["ttft_percent"]) < 15


def test_the_same_times_on_a_gpu_of_the_same_data_sheet_have_no_error(shipped):
    one = shipped["llama-3-8b"]
    fingerprint = {**one.profile["fingerprint"], "device": "twin"}
    twin = Known(
        {**one.profile, "fingerprint": fingerprint}, replace(one.gpu, name="twin", device="twin", transfers=None)
    )
    (row,) = [row for row in left_out.tested([one, twin], [twin]) if row["way"] == "other GPU"]
    assert (row["source_model"], row["source_gpu"]) == ("llama-3-8b", "h200")
    assert list(row.values())[9:] == pytest.approx([0.0] * 7, abs=0.1)


SCALE = np.array([1e-3, 1e-4])


@pytest.mark.parametrize(
    ("jacobian", "optimum", "found"),
    [
        ([[1, 0], [0, 1]], [2e-3, 3e-4], [2e-3, 3e-4]),
        ([[1, 0], [0, 1]], [2e-3, -3e-4], [2e-3, 0]),  # a time below zero is left out
        ([[1, 1], [1, 2]], [2e-3, -1e-3], [5e-4, 0]),  # and the others are fitted without it
        ([[1, 0], [0, 1]], [-1e-3, -1e-3], [0, 0]),
    ],
)
def test_descent_finds_the_least_squares_without_negative_times(jacobian, optimum, found):
    jacobian = np.array(jacobian, float)

    def at(values):
        return Point(values, jacobian @ (values - np.array(optimum)), jacobian)

    assert descend(at, SCALE, SCALE, 2).values == pytest.approx(found, abs=1e-12)


def test_other_unknowns_change_by_at_most_a_factor_in_a_step():
    def at(values):
        steps.append(values[0])
        return Point(values, values - 16.0, np.ones((1, 1)))

    steps = []
    assert descend(at, np.ones(1), np.ones(1), 0).values == pytest.approx([16.0])
    assert steps[:3] == [1, 2, 1.5]


def test_standard_error_is_that_of_a_mean():
    """Four observations of one time, each off by 0.1: sqrt(0.04 / 3 / 4)."""
    errors, correlations = uncertainty(["a"], np.array([0.1, -0.1, 0.1, -0.1]), np.ones((4, 1)), np.ones(1))
    assert errors == {"a": pytest.approx(0.0577350269)}
    assert correlations == {}
