"""The fit of the 2023 system's two constants, on bars that follow a formula."""

import numpy as np
import pytest
from refusals import refuses

from testbed.experiments.commands.cli import call
from testbed.experiments.paper.fits import PLAIN_S, TOLERANCE, Fit, forks_a_step, kept_us, published, shares_us, split
from testbed.experiments.runs.compose import configured

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


KINDS = [("parallel", 1), ("parallel", 4), ("beam", 4), ("beam", 6)]


def sampler(group, sequence, fork):
    return {
        (name, width): group + sequence * width + (fork * forks_a_step(width) if name == "beam" else 0)
        for name, width in KINDS
    }


def test_a_formula_s_shares_are_found_and_scaled_to_a_plain_request():
    """100 us a group, 10 a sequence, 30 a fork; with the scheduler's 20 a sequence a plain request takes 130 us."""
    us = sampler(100, 10, 30)
    assert shares_us(us) == pytest.approx((100, 10, 30))
    found = split(us, 260e-6)
    assert found.host == pytest.approx(2)
    assert (found.request_s, found.sequence_s) == pytest.approx((200e-6, 60e-6))
    assert found.sequences_per_fork == pytest.approx((30 + 110 / forks_a_step(6)) / 30)


def test_the_figures_use_what_the_kept_rows_say(capsys):
    cost = configured(("+protocol=sosp23", "+system=vllm")).cost.parameters["choices"].parameters
    found = split(kept_us())
    assert cost["overhead_per_request_s"] + cost["overhead_per_sequence_s"] == pytest.approx(PLAIN_S)
    assert cost["overhead_per_sequence_s"] == pytest.approx(found.sequence_s, rel=0.005)
    assert cost["sequences_per_fork"] == pytest.approx(found.sequences_per_fork, rel=0.01)
    call("fit-constants", ["sampler"])
    assert "parallel 1: 143 us of the sampler; costs 1.00 plain requests" in capsys.readouterr().out


def test_rows_of_one_number_of_groups_have_no_slope(tmp_path):
    (tmp_path / "rows.csv").write_text("# where\nkind,width,groups,median_us\nparallel,1,8,1000\n")
    refuses("one number of groups", kept_us, tmp_path / "rows.csv")
