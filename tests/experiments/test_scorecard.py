"""Verdicts follow the tolerance beside each published number."""

import pytest

from experiments.paper.scorecard import error, limits, reference, scorecard
from experiments.paper.studies.study import Finding


@pytest.mark.parametrize(
    ("check", "published", "tolerance", "expected"),
    [
        ("value", "200", "5%", (190, 210)),
        ("value", "20.4", "1 point", (19.4, 21.4)),
        ("value", "6.09", "1.5 points", (4.59, 7.59)),
        ("range", "1.7-2.7", "none", (1.7, 2.7)),
        ("range", "16.2-30.5", "2 points at each end", (14.2, 32.5)),
        ("bound", "small", "below 1.25x", (-float("inf"), 1.25)),
        ("bound", "20", "none", (-float("inf"), 20)),
        ("spread", "about 1", "10%", (0.9, 1.1)),
    ],
)
def test_limits(check, published, tolerance, expected):
    assert limits(check, published, tolerance) == pytest.approx(expected)


def test_error_is_in_the_unit_of_the_tolerance():
    assert error("20.4", 20.0, "1 point") == "-0.40 points"
    assert error("200", 210, "5%") == "+5.0%"
    assert error("1.7-2.7", 2.0, "none") == ""


def test_every_row_of_a_figure_is_listed_also_when_it_was_not_simulated():
    card = scorecard([], ["fig13a"])
    assert list(card["verdict"]) == ["miss", "miss", "miss", ""]
    assert list(card["note"]) == ["not simulated"] * 3 + [""]


def test_a_calibrate_row_has_no_verdict_and_a_strange_setting_no_published_number():
    vllm = Finding("fig13a", "opt-13b sharegpt 2 req/s", "vllm", "mean_batched_requests", 30.0)
    card = scorecard([vllm, vllm._replace(setting="opt-13b sharegpt 1.5 req/s")], ["fig13a"])
    assert list(card["verdict"])[3:] == ["", ""]
    assert card.iloc[4]["published"] == ""


def test_every_reference_row_has_a_check_that_is_known():
    rows = reference()
    judged = rows[rows["role"].isin(["predict", "compare"])]
    assert (judged["check"] != "").all()
