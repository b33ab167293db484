"""Traces and arrivals of a user that give what no run can take, and windows of time."""

import numpy as np
import pytest

from testbed import simulate
from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.engine.arrivals import ArrivalProcess
from testbed.traces.reader import Trace

SHORT = {"rate": 2, "duration_s": 5}


class Given(Trace):
    """Rows that are given, or an error; `more` than are asked for."""

    def __init__(self, more=0, arrival_s=None, error=None):
        self.more, self.arrival_s, self.error = more, arrival_s, error

    def rows(self, num_rows, seed, max_len=None):
        if self.error is not None:
            raise self.error
        size = len(self.arrival_s) if num_rows is None else num_rows + self.more
        return Rows(np.full(size, 8), np.full(size, 4), arrival_s=self.arrival_s)


class Times(ArrivalProcess):
    """Arrivals at times that are given."""

    def __init__(self, times_ps):
        self.given = times_ps

    def times_ps(self, rows, seed):
        return self.given


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"trace": Given(more=1)}, "Poisson", "give as many"),
        ({"trace": Given(error=MemoryError())}, "arrivals", "do not fit into memory"),
        ({"trace": Given(error=MemoryError("9e9 are expected"))}, "arrivals", "(9e9 are expected)"),
        ({"arrivals": Times([5, 4])}, "Times.times_ps", "in order of time"),
        ({"arrivals": Times([-1])}, "Times.times_ps", "whole picoseconds"),
        ({"arrivals": Times([0.5])}, "Times.times_ps", "whole picoseconds"),
        ({"arrivals": Times([[1], [1, 2]])}, "Times.times_ps", "whole picoseconds"),
        (
            {"trace": Given(arrival_s=np.array([0.0, 1e12])), "arrivals": "replay"},
            "the trace",
            "raise arrivals.speedup",
        ),
    ],
)
def test_what_a_trace_or_its_times_cannot_be_is_refused(options, key, words):
    times = {} if "arrivals" in options else SHORT
    with pytest.raises(InputError) as caught:
        simulate(**options, **times)
    assert caught.value.key.endswith(key)
    assert words in str(caught.value)


def test_times_at_both_ends_of_what_is_allowed_are_served():
    result = simulate(trace=Given(), arrivals=Times([0, 0, 10**12]))
    assert result.summary["requests"]["finished"] == 3


def test_means_of_a_window_behind_the_end_of_the_run_are_of_nothing():
    """The requests are counted all the same."""
    summary = simulate(**SHORT, window_s=(5000, 6000)).summary
    assert summary["requests"]["finished"] > 0
    assert summary["batch"] == {"mean_per_iteration": None, "mean_over_time": None}
    assert set(summary["memory_saving"].values()) == {None}
