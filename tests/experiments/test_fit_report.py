"""Reports of fitted software times: errors, inseparable times, options of a run."""

from refusals import check_words

from testbed.experiments.real.validation import fit_report as fit
from testbed.experiments.real.validation.software_fit import Fitted

ITERATION_S, REQUEST_S = 2e-3, 1e-4
FITTED = Fitted(
    times_s={"iteration": ITERATION_S, "request": REQUEST_S},
    slowness={"a.csv": 1.0, "b.csv": 1.2},
    standard_errors={"iteration": 1e-3, "request": 5.1e-5, "b.csv": 0.1},
    correlations={("iteration", "request"): -0.95, ("iteration", "token"): 0.9},
    error=0.0625,
)


def lines():
    """The lines of three times, by their names."""
    names = ["iteration", "request", "token"]
    return dict(zip(names, fit.report(FITTED, names), strict=False))


def test_times_are_in_microseconds_with_their_standard_errors():
    check_words(("2000.00 us", "standard error 1000.00 us"), lines()["iteration"])
    check_words(("100.00 us", "standard error 51.00 us"), lines()["request"])


def test_time_within_two_standard_errors_of_zero_is_not_distinguishable():
    report = "\n".join(fit.report(FITTED, ["iteration", "request", "token"]))
    assert report.count("not distinguishable from zero") == 1  # the request's 100 us of 51


def test_a_time_that_was_fitted_below_zero_is_none():
    check_words(("none (below zero)",), lines()["token"])


def test_times_that_are_strongly_correlated_are_named_as_a_pair():
    report = "\n".join(fit.report(FITTED, ["iteration", "request", "token"]))
    assert "iteration and request cannot be separated" in report
    assert "iteration and token cannot be separated" not in report  # 0.9 is not beyond


def test_disagreement_of_logs_beyond_two_standard_errors_is_reported():
    agreeing = "\n".join(fit.report(FITTED, ["token"]))
    assert "the logs disagree" not in agreeing  # 0.2 of 0.1
    other = Fitted(
        times_s={},
        slowness={"a.csv": 1.0, "b.csv": 0.79},
        standard_errors={"b.csv": 0.1},
        correlations={},
        error=0.5,
    )
    assert "the logs disagree" in "\n".join(fit.report(other, ["token"]))


def test_report_ends_with_the_options_of_a_run():
    report = list(fit.report(FITTED, ["iteration", "request", "token"]))
    assert report[-1].split() == [
        f"cost.choices.overhead_s={ITERATION_S}",
        f"cost.choices.overhead_per_request_s={REQUEST_S}",
        "cost.choices.overhead_per_token_s=0",
    ]
