"""Sustained rates: the bisection, the exact stop past the knee, and the intervals of their ratios."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_run import without_id

from experiments.paper.studies.curves import interval
from experiments.paper.studies.knee import bracket, sustained_rate
from experiments.runs.lab import Lab

GRID = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("knee", [0.13, 0.99, 1.5, 2.71, 3.3, 17.0])
def test_the_knee_is_found_wherever_it_is(knee):
    def holds(rate):
        return rate < knee

    found = sustained_rate(holds, *bracket(GRID, holds), precision=0.01)
    assert found == pytest.approx(knee, rel=0.01)


@pytest.mark.parametrize(
    ("knee", "expected"), [(2.5, (2.0, 3.0)), (0.5, (0.8, 1.0)), (9.0, (4.0, 5.0)), (1.0, (0.8, 1.0))]
)
def test_the_bracket_is_the_pair_around_the_knee(knee, expected):
    assert bracket(GRID, lambda rate: rate < knee) == pytest.approx(expected)


@pytest.mark.parametrize("rate", [0.5, 4.0])
def test_a_stop_at_a_latency_is_exact(tmp_path, rate):
    """A run that would stay below the limit is not touched, and one that is stopped would have exceeded it."""
    lab, values = Lab(tmp_path), {"arrivals.rate": rate, "arrivals.duration_s": 200, "outputs": "summary"}
    whole = lab.measure(["+system=orca-max"], values).summary
    mean = whole["normalized_latency_s_per_token"]["mean"]
    limit = 0.2
    stopped = lab.measure(["+system=orca-max"], {**values, "stop_at_latency": limit}).summary
    if mean < limit:
        assert without_id(stopped) == without_id(whole)
    else:
        assert limit < stopped["stopped_at_latency"] <= mean
        assert stopped["simulated_s"] < whole["simulated_s"]


def test_interval_of_three_values():
    assert interval(np.array([1.0, 2.0, 3.0]), 0.0) == "-0.48 to 4.48"
    assert interval(np.array([1.0]), 0.0) == ""


def test_an_interval_is_never_narrower_than_what_the_bisection_leaves_open():
    assert interval(np.array([2.0, 2.0, 2.0]), 0.05) == "1.90 to 2.10"


def test_every_point_is_simulated_once(tmp_path):
    lab = Lab(tmp_path)
    values = {"arrivals.duration_s": 10}
    first, second = (lab.measure(["+system=vllm"], values) for _ in range(2))
    assert first == second
    assert json.loads((Path(tmp_path) / first.run_id / "summary.json").read_text()) == first.summary
