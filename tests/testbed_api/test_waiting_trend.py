"""A queue that grows differs from one that is long: by the slope of the waiting time."""

import numpy as np
import pytest

from testbed import simulate
from testbed.core.request import PS, Request
from testbed.run.metrics import in_words, overload
from testbed.study.waiting_trend import wait_growth


def queue(load, num_requests, seed):
    """Arrivals of rate 1 and waiting times of one server with exponential service times."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1, num_requests))
    service = rng.exponential(load, num_requests)
    waits = [0.0]
    for gap, last in zip(np.diff(arrivals), service[:-1], strict=True):
        waits.append(max(0.0, waits[-1] + last - gap))
    return arrivals, np.array(waits)


def growing(load, num_requests=1000, num_runs=40):
    runs = (queue(load, num_requests, seed) for seed in range(num_runs))
    return sum(wait_growth(*run) is not None for run in runs) / num_runs


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9, 0.95])
def test_busy_servers_that_keep_up_are_not_called_overloaded(load):
    assert growing(load) <= 0.05


def test_server_that_falls_behind_is_found_in_most_runs():
    assert growing(1.15) > 0.7


def test_small_deficit_is_found_that_the_served_rate_hides():
    """A request every second and a server that needs 1.05 s: 95% are served in time."""
    arrivals = np.arange(2000.0)
    firsts = arrivals + 0.05 * arrivals
    trend = overload(arrivals, firsts)
    assert trend["wait_growth_s_per_s"] == pytest.approx(0.05)
    assert "0.05 s" in in_words(trend)


def test_order_of_the_requests_does_not_matter():
    arrivals, waits = queue(1.2, 1000, 0)
    order = np.random.default_rng(1).permutation(1000)
    assert wait_growth(arrivals[order], waits[order]) == pytest.approx(wait_growth(arrivals, waits))


def test_long_but_steady_wait_is_no_overload():
    arrivals = np.arange(2000.0)
    steady = arrivals + 100 + np.random.default_rng(0).normal(0, 5, 2000)
    assert overload(arrivals, steady) is None


@pytest.mark.parametrize("num_requests", [0, 1, 20])
def test_a_few_requests_show_no_trend_of_waiting(num_requests):
    arrivals = np.arange(float(num_requests))
    assert wait_growth(arrivals, arrivals) is None


def test_rejected_requests_wait_for_nothing():
    """Every second prompt is longer than the model's longest sequence."""
    lengths = [100, 5000] * 100
    requests = [Request(i, i * PS, length, 10) for i, length in enumerate(lengths)]
    result = simulate(trace=requests, model="opt-13b", policy="paged")
    assert result.summary["requests"]["rejected"] == 100
    assert result.summary["overload"] is None
