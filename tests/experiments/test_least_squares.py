"""The least squares of fit-software: its minimum above zero, standard errors and correlations, worked out by hand."""

import numpy as np
import pytest

from testbed.experiments.validation.software_fit import Point, descend, uncertainty

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
