"""The fit of the 2023 system's two constants, on bars that follow a formula."""

import numpy as np
import pytest
from refusals import refuses

from testbed.experiments.paper.fits import TOLERANCE, Fit, published

TRUTH = np.array([3.0e-4, 3.1e-4])
POWERS = np.array([[0.05, 0.4], [0.1, 2.0]])  # of each bar in each constant
NOISE = 0.01


class ByFormula(Fit):
    """Bars that are the published ones at TRUTH; seeds beyond the first scatter around them."""

    def __init__(self, truth=TRUTH):
        super().__init__(None, None)
        self.truth = truth

    def bars(self, x, seeds=1):
        bars = np.log(published()) + POWERS @ ((x * self.unit - self.truth) / self.truth)
        scatter = NOISE * np.array([[0, 0], [1, 1], [-1, 1], [1, -1], [-1, -1]])[:seeds]
        return bars + scatter


def test_fit_recovers_the_true_constants():
    found = ByFormula().solve()
    assert np.abs(ByFormula().error(found)).max() < TOLERANCE
    assert found[1] * ByFormula().unit[1] == pytest.approx(TRUTH[1], rel=0.05)


def test_bars_that_cannot_be_fitted_are_refused():
    fit = ByFormula(np.array([-1.0, 3.1e-4]))  # only below zero
    fit.bars = lambda x, seeds=1: np.log(published()) + 0.1 + np.array([[1e-3 * x[0], 2e-3 * x[1]]])
    refuses("no fit within", fit.solve)


def test_standard_errors_and_elasticities_match_the_formula(capsys):
    fit = ByFormula()
    fit.report(TRUTH / fit.unit)
    reported = capsys.readouterr().out.splitlines()
    assert reported[3].startswith("elasticities of the bar of trace=sharegpt: 0.050 by choices.overhead_s, 0.400 by")
    assert reported[3].endswith("spread over 5 seeds 1.00%")
    spread = NOISE * np.linalg.norm(np.linalg.inv(POWERS)[1]) * TRUTH[1]
    assert reported[1] == f"choices.overhead_per_sequence_s: 0.00031  # standard error {spread:.2g}"
