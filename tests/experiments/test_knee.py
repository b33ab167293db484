"""Sustained rates: the bisection, the exact stop past the knee, and the intervals of their ratios."""

import numpy as np
import pytest
from tiny_run import without_id

from testbed.api import bracket, sustained_rate
from testbed.experiments.paper.studies.curves import interval
from testbed.experiments.runs.run_store import RunStore

GRID = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("knee", [0.13, 0.99, 1.5, 2.71, 3.3, 17.0])
def test_bisection_finds_the_sustained_rate(knee):
    def is_sustained(rate):
        return rate < knee

    found = sustained_rate(is_sustained, *bracket(GRID, is_sustained), precision=0.01)
    assert found == pytest.approx(knee, rel=0.01)


@pytest.mark.parametrize(
    ("knee", "expected"), [(2.5, (2.0, 3.0)), (0.5, (0.8, 1.0)), (9.0, (4.0, 5.0)), (1.0, (0.8, 1.0))]
)
def test_bracket_is_the_pair_of_rates_around_the_knee(knee, expected):
    assert bracket(GRID, lambda rate: rate < knee) == pytest.approx(expected)


@pytest.mark.parametrize("rate", [0.5, 4.0])
def test_stop_at_latency_never_changes_the_verdict(tmp_path, rate):
    """A run that would stay below the limit is not touched, and one that is stopped would have exceeded it."""
    store, values = RunStore(tmp_path), {"arrivals.rate": rate, "arrivals.duration_s": 200, "outputs": "summary"}
    whole = store.measure(["+system=orca-max"], values).summary
    mean = whole["normalized_latency_s_per_token"]["mean"]
    limit = 0.2
    stopped = store.measure(["+system=orca-max"], {**values, "stop_at_latency": limit}).summary
    if mean < limit:
        assert without_id(stopped) == without_id(whole)
    else:
        assert limit < stopped["stopped_at_latency"] <= mean
        assert stopped["simulated_s"] < whole["simulated_s"]


def test_confidence_interval_of_three_values():
    assert interval(np.array([1.0, 2.0, 3.0]), 0.0) == "-0.48 to 4.48"
    assert interval(np.array([1.0]), 0.0) == ""


def test_interval_covers_the_bisection_precision():
    assert interval(np.array([2.0, 2.0, 2.0]), 0.05) == "1.90 to 2.10"
