"""Verdicts follow the tolerance beside each published number."""

import pandas as pd
import pytest

from experiments.paper.margins import limits, margin
from experiments.paper.scorecard import PARTS, counted, error, reference, scorecard
from experiments.paper.studies.blocks import best_sizes
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


def test_a_margin_is_in_units_of_the_tolerance():
    value = {"check": "value", "published": "200", "tolerance": "5%"}
    assert [margin(value, x) for x in (200, 205, 210, 190, 220)] == pytest.approx([1, 0.5, 0, 0, -1])
    assert margin({"check": "range", "published": "1.7-2.7", "tolerance": "none"}, 1.6) == pytest.approx(-0.2)
    assert margin({"check": "bound", "published": "20", "tolerance": "none"}, 15) == pytest.approx(0.25)


def test_every_judged_row_has_one_part_and_no_other_row_has():
    rows = reference()
    judged = rows["role"].isin(["predict", "compare"])
    assert set(rows[judged]["part"]) == set(PARTS)
    assert set(rows[~judged]["part"]) == {""}


def test_counts_come_by_part():
    card = scorecard([Finding("sec3", "opt-13b", "", "kv_bytes_per_token", 800.0)], ["sec3", "fig13a"])
    assert counted(card) == "arithmetic (no price matters) 1 of 3; memory (memory and trace) 0 of 2"


SIZES = [8, 16, 32, 64]


@pytest.mark.parametrize(
    ("latencies", "holds"),
    [([1.2, 1.0, 1.09, 1.2], True), ([1.2, 1.0, 1.11, 1.2], False), ([0.97, 1.0, 1.0, 1.2], False),
     ([0.99, 1.0, 1.0, 1.2], True), ([1.2, 1.0, 1.05, 1.04], False)],
)  # fmt: skip
def test_every_claimed_size_is_near_the_best_and_no_other_is_better(latencies, holds):
    claim = {"setting": "s", "quantity": "q", "sizes": [16, 32], "worse_from": 64}
    found = best_sizes("fig18b", claim, pd.Series(latencies, index=SIZES))
    assert (found.margin >= 0) == holds
