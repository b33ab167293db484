"""Percentiles against NumPy's own, bit for bit."""

import numpy as np
import pytest

from testbed.run.percentiles import percentiles

PERCENTS = (50, 90, 95, 99, 10, 1, 0, 100, 37.5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100, 101, 1_000])
def test_percentiles_are_those_of_numpy(size):
    random = np.random.default_rng(size)
    of_floats = random.lognormal(0, 3, size)
    of_times_ps = random.integers(0, 1 << 60, size)
    of_few = random.integers(0, 3, size)
    for values in (of_floats, of_times_ps, of_few):
        assert percentiles(values, PERCENTS) == np.percentile(values, PERCENTS).tolist()


def test_the_values_stay_as_they_are():
    values = np.array([3.0, 1.0, 2.0])
    assert percentiles(values, (50,)) == [2.0]
    assert values.tolist() == [3.0, 1.0, 2.0]
