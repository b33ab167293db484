"""Arrival times are the artifact's, however many slots are drawn at once."""

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import PS, Rows
from testbed.sim import arrivals
from testbed.sim.arrivals import Gamma, Poisson, Replay, Slotted


def test_slots_are_the_protocols_word_for_word(monkeypatch):
    np.random.seed(3)
    counts = np.random.poisson(4.0 * 0.010, size=900 * 100)
    expected = [i * PS // 100 for i, count in enumerate(counts) for _ in range(count)]
    assert Slotted(4.0, 900).times_ps(None, 3).tolist() == expected
    monkeypatch.setattr(arrivals, "SLOTS_AT_ONCE", 1000)
    assert Slotted(4.0, 900).times_ps(None, 3).tolist() == expected


@pytest.mark.parametrize("process", [Poisson(5.0, 2000), Gamma(5.0, 2000, burstiness=4.0)])
def test_rate_order_and_seed(process):
    times = process.times_ps(None, 0)
    assert len(times) == pytest.approx(10_000, rel=0.1)
    assert (np.diff(times) >= 0).all()
    assert times.tolist() == process.times_ps(None, 0).tolist() != process.times_ps(None, 1).tolist()


def test_a_rate_of_nothing_is_refused_by_name():
    with pytest.raises(InputError, match=r"arrivals.rate is 0"):
        Poisson(0, 10)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_s_mean_and_the_burstiness_asked_for(burstiness):
    gaps = np.diff(Gamma(20.0, 5000, burstiness).times_ps(None, 0)) / PS
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(burstiness, rel=0.06)


def test_poisson_is_gamma_of_burstiness_one():
    assert Poisson(5.0, 100).times_ps(None, 7).tolist() == Gamma(5.0, 100, 1.0).times_ps(None, 7).tolist()


def test_a_replay_is_the_trace_s_own_clock_or_so_many_times_as_fast():
    lengths = np.array([1, 1, 1])
    rows = Rows(lengths, lengths, np.array([0.0, 0.3, 2.0]))
    assert Replay().times_ps(rows, 0).tolist() == [0, 3 * PS // 10, 2 * PS]
    assert Replay(speedup=4).times_ps(rows, 1).tolist() == [0, 75 * PS // 1000, PS // 2]


def test_a_replay_without_time_stamps_is_refused():
    with pytest.raises(InputError, match="needs a trace with time stamps"):
        Replay().times_ps(Rows(np.array([1]), np.array([1])), 0)
