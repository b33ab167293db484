"""Arrival times are the artifact's, however many slots are drawn at once."""

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.sim import arrivals
from testbed.sim.arrivals import Gamma, Poisson, Slotted


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
