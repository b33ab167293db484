"""The fit of the 2023 system's two constants, on bars that follow a formula."""

import re

import numpy as np
import pytest
from joblib import parallel_config
from refusals import refuses

from testbed.experiments.cli.main import call
from testbed.experiments.paper.fitted_constants import (
    PLAIN_S,
    Fit,
    fit_2023,
    fit_beams,
    forks_a_step,
    kept_us,
    published,
    shares_us,
    split,
)
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import Measured

TRUTH = np.array([3.0e-4, 3.1e-4])
POWERS = np.array([[0.05, 0.4], [0.1, 2.0]])  # of each bar in each constant
NOISE = 0.01


class Stub:
    """A store whose runs follow formulas: bars are the published ones at TRUTH, seeds beyond the
    first scatter.
    """

    def measure(self, overrides, values):
        words, found = (
            dict(word.partition("=")[::2] for word in overrides),
            np.array([*values.values()]),
        )
        if "beams.concentration" in values:
            return Measured(
                {"memory_saving": {"per_iteration": 0.5 * found[0] / (1 + found[0])}}, ""
            )
        panel, seed = int(words["trace"] == "alpaca"), int(words["seed"])
        scatter = NOISE * ((0, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))[seed][panel]
        bar = published()[panel] * np.exp(POWERS[panel] @ (found / TRUTH - 1) + scatter)
        return Measured({"batch": {"mean_per_iteration": bar}}, "")


@pytest.fixture
def fitted_2023(capsys):
    """The output of the fit of the two constants."""
    with parallel_config("sequential"):
        fit_2023(Stub())
    return capsys.readouterr().out


def test_fit_recovers_the_constants_of_simulated_bars(fitted_2023):
    for name, truth in zip(("overhead_s", "overhead_per_sequence_s"), TRUTH, strict=True):
        fitted = float(re.search(rf"software\.{name}: (\S+)", fitted_2023)[1])
        assert fitted == pytest.approx(truth, rel=0.01)


def test_standard_errors_are_those_of_the_scatter_of_one_seed(fitted_2023):
    """Relative changes are inverse(POWERS) times those of the bars, which scatter by NOISE."""
    covariance = NOISE**2 * np.linalg.inv(POWERS) @ np.linalg.inv(POWERS).T
    printed = [float(text) for text in re.findall(r"standard error (\S+)", fitted_2023)]
    assert printed == pytest.approx(TRUTH * np.sqrt(np.diag(covariance)), rel=0.05)
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert f"correlation of their errors: {correlation:.2f}" in fitted_2023


def test_elasticities_are_the_powers_of_the_bars(fitted_2023):
    printed = re.findall(r"elasticities of the bar of .*: (\S+) by \S+, (\S+) by ", fitted_2023)
    assert np.array(printed, float) == pytest.approx(POWERS, abs=5e-4)
    assert fitted_2023.count(f"spread over 5 seeds {NOISE:.2%}") == 2


def test_beams_of_the_fitted_concentration_save_what_was_published():
    """A concentration of 3.02 saves 0.3756 of 0.5."""
    assert fit_beams(Stub()) == pytest.approx(0.3756 / (0.5 - 0.3756), rel=0.01)


def test_bars_that_cannot_be_fitted_are_refused():
    fit = Fit(None)
    fit.bars = lambda x, seeds=1: np.log(published()) + 0.1 + np.array([[1e-3 * x[0], 2e-3 * x[1]]])
    refuses(
        r"is not within 0.5% after 12 rounds; the last: \[0. +0.000205\]", fit.solve
    )  # only below zero


KINDS = [("parallel", 1), ("parallel", 4), ("beam", 4), ("beam", 6)]


def sampler(group, sequence, fork):
    return {
        (name, width): group
        + sequence * width
        + (fork * forks_a_step(width) if name == "beam" else 0)
        for name, width in KINDS
    }


def test_shares_of_a_known_formula_are_recovered():
    """100 us a group, 10 a sequence, 30 a fork; with the scheduler's 20 a sequence a plain request
    takes 130 us.
    """
    us = sampler(100, 10, 30)
    assert shares_us(us) == pytest.approx((100, 10, 30))
    shares = split(us)
    assert shares.host == pytest.approx(PLAIN_S / 130e-6)
    assert (shares.request_s, shares.sequence_s) == pytest.approx(
        (PLAIN_S * 10 / 13, PLAIN_S * 3 / 13)
    )
    assert shares.sequences_per_fork == pytest.approx((30 + 110 / forks_a_step(6)) / 30)


def test_figures_use_the_constants_fitted_to_the_kept_rows(capsys):
    cost = configured(("+protocol=sosp23", "+system=vllm")).cost.parameters["software"].parameters
    shares = split(kept_us())
    assert cost["overhead_per_request_s"] + cost["overhead_per_sequence_s"] == pytest.approx(
        PLAIN_S
    )
    assert cost["overhead_per_sequence_s"] == pytest.approx(shares.sequence_s, rel=0.005)
    assert cost["sequences_per_fork"] == pytest.approx(shares.sequences_per_fork, rel=0.01)
    call("calibrate fit constants", ["sampler"])
    output = capsys.readouterr().out
    assert f"overhead_per_sequence_s: {shares.sequence_s:.4g}" in output
    assert f"sequences_per_fork: {shares.sequences_per_fork:.3g}" in output
