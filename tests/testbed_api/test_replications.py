"""Means over seeds: intervals by the tables of Student's t, and differences on the same seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.study.multiple_tests import deciding, holm
from testbed.study.replications import Interval, interval, paired, student_t


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)],
)
def test_students_t_is_that_of_the_tables(degrees, value):
    assert student_t(degrees) == pytest.approx(value, abs=5e-5)


def test_interval_of_three_values_by_hand():
    mean = interval([1.0, 2.0, 3.0])  # a standard deviation of 1
    assert (mean.mean, mean.num_values) == (2.0, 3)
    assert mean.half_width == pytest.approx(4.3027 / 3**0.5, abs=1e-4)


def test_interval_covers_the_mean_as_often_as_it_says():
    samples = np.random.default_rng(0).normal(5, 2, (2000, 4))
    covered = [not interval((row - 5).tolist()).includes_zero for row in samples]
    assert 1 - np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_differences_are_taken_seed_by_seed():
    base = [10.0, 50.0, 90.0]  # seeds differ much more than the systems
    difference = paired([11.0, 51.1, 90.9], base)
    assert not difference.includes_zero
    assert difference.mean == pytest.approx(1.0)
    assert interval([11.0, 51.1, 90.9]).half_width > 50


def test_one_value_has_no_interval_and_tells_no_difference():
    assert interval([2.0]).half_width is None
    assert paired([2.0], [1.0]).includes_zero


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2.241, 2.813, 2.5], "2.52 ± 0.71"),
        ([1234, 1300, 1250], "1,261 ± 86"),
        ([0.0251, 0.0252, 0.0253], "0.02520 ± 0.00025"),
        ([3.0, 3.0], "3"),
        ([3.14159], "3.14"),
    ],
)
def test_no_digit_is_shown_that_the_interval_does_not_carry(values, text):
    assert str(interval(values)) == text


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (3.4, 27.3, "3 ± 27"),
        (-0.31, 2.6, "-0.3 ± 2.6"),
        (-0.4, 30.1, "0 ± 30"),
        (280.4, 512.0, "280 ± 510"),
        (31.0, 27.3, "31 ± 27"),
        (75.6, 28.9, "76 ± 29"),
        (24.1, 12.7, "24 ± 13"),
        (7.24, 0.996, "7.2 ± 1.0"),
        (1260.4, 91.0, "1,260 ± 91"),
        (1260.4, 0.0, "1,260"),
    ],
)
def test_a_half_width_has_two_digits_and_its_mean_the_same_places(mean, half_width, text):
    assert str(Interval(mean, half_width, 3)) == text


@pytest.mark.parametrize(
    ("values", "text"), [([np.nan, 1.0], "nan ± nan"), ([np.inf, 1.0], "inf ± nan")]
)
def test_values_that_are_no_numbers_decide_nothing(values, text):
    none = interval(values)
    assert str(none) == text
    assert none.includes_zero
    assert none.p_value == 1


@given(st.lists(st.floats(1, 100), min_size=2, max_size=4))
def test_a_rounded_mean_stays_among_its_values(values):
    """20 would be no mean of 23 and 25."""
    shown = float(str(interval(values)).partition(" ")[0].replace(",", ""))
    slack = 0.005 * max(values)  # of equal values, which have four digits
    assert min(values) - slack <= shown <= max(values) + slack


@pytest.mark.parametrize(
    ("t", "degrees", "p"), [(12.7062, 1, 0.05), (2.7764, 4, 0.05), (4.6041, 4, 0.01)]
)
def test_p_values_are_those_of_the_tables(t, degrees, p):
    count = degrees + 1
    half_width = student_t(degrees)  # of a standard error of 1
    assert Interval(t, half_width, count).p_value == pytest.approx(p, abs=1e-5)
    assert Interval(-t, half_width, count).p_value == pytest.approx(p, abs=1e-5)


def test_p_values_of_means_without_spread():
    assert interval([1.0, 1.0]).p_value == 0
    assert interval([0.0, 0.0]).p_value == interval([3.0]).p_value == 1


def test_holms_adjustment_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_finds_no_difference_where_none_is_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(0, 1, (500, 10, 5))
    smallest = [min(holm([interval(of.tolist()).p_value for of in search])) for search in draws]
    assert np.mean([p < 0.05 for p in smallest]) == pytest.approx(0.05, abs=0.03)


def test_an_interval_that_decides_includes_zero_where_the_adjusted_p_value_is_not_small():
    draws = np.random.default_rng(2).normal(0.7, 1, (200, 6, 5))
    for search in draws:
        found = [interval(of.tolist()) for of in search]
        adjusted = holm([of.p_value for of in found])
        for of, p in zip(found, adjusted, strict=True):
            assert deciding(of, p).includes_zero == (p >= 0.05)
            assert deciding(of, of.p_value).half_width == pytest.approx(of.half_width)


def test_the_interval_of_one_of_five_tests_is_that_of_the_tables():
    """Student's t of 1% with four degrees of freedom is 4.6041, of 5% 2.7764."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    ratio = deciding(found, 5 * found.p_value).half_width / found.half_width
    assert ratio == pytest.approx(4.6041 / 2.7764, abs=1e-4)


def test_a_difference_of_one_seed_is_no_verdict():
    assert paired([5.0], [2.0]).as_difference("req/s") == "+3 req/s on one seed"
    assert (
        paired([5.0, 2.0], [2.0, 5.0]).as_difference("req/s").startswith("not distinguishable (0")
    )
    assert paired([5.0, 5.2, 5.1], [2.0, 2.1, 2.2]).as_difference("req/s").endswith(" req/s")
