"""When requests arrive: time stamps for a trace's rows."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Column, Rows
from testbed.core.sessions import SessionWorkload, in_likely_order

SLOTS_AT_ONCE = 1 << 20
MAX_SLOTS = 10**9


class ArrivalProcess(ABC):
    """Draws arrival times; the same seed gives the same times. One that `replays` needs the whole trace for that."""

    replays: ClassVar[bool] = False

    @abstractmethod
    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        """Arrival times in order, in picoseconds. `rows` is a whole trace where the process replays time stamps."""


def positive(**values: float) -> None:
    """Raise InputError for a value that is not above zero."""
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"arrivals.{name} is {value}; it must be above 0")


class Poisson(ArrivalProcess):
    """`rate` requests a second for duration_s seconds, exponential gaps."""

    def __init__(self, rate: float, duration_s: float) -> None:
        positive(rate=rate, duration_s=duration_s)
        self.rate = rate
        self.duration_s = duration_s

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        return renewal_times(np.random.default_rng([seed, 1]), 1.0, self.rate, self.duration_s)


class Gamma(ArrivalProcess):
    """Gaps from a gamma distribution; burstiness is their squared coefficient of variation (1: Poisson)."""

    def __init__(self, rate: float, duration_s: float, burstiness: float) -> None:
        positive(rate=rate, duration_s=duration_s, burstiness=burstiness)
        self.rate = rate
        self.duration_s = duration_s
        self.burstiness = burstiness

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        return renewal_times(np.random.default_rng([seed, 1]), 1 / self.burstiness, self.rate, self.duration_s)


class Slotted(ArrivalProcess):
    """The artifact's recipe: a Poisson count for every slot of 10 ms, all of it arriving at the slot's start."""

    def __init__(self, rate: float, duration_s: float, slot_s: float = 0.01) -> None:
        positive(rate=rate, duration_s=duration_s, slot_s=slot_s)
        if slot_s < 1 / PS or duration_s / slot_s > MAX_SLOTS:
            raise InputError(
                f"arrivals.slot_s is {slot_s}; it must be at least 1e-12 (1 ps), and arrivals.duration_s at most "
                f"{MAX_SLOTS:,} slots"
            )
        self.rate = rate
        self.duration_s = duration_s
        self.slot_s = slot_s

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        # The artifact draws from NumPy's legacy generator, whose stream is frozen.
        rng, num_slots = np.random.RandomState(seed), round(self.duration_s / self.slot_s)
        times = [np.empty(0, np.int64)]
        for start in range(0, num_slots, SLOTS_AT_ONCE):  # a million seconds are a hundred million slots
            draws = rng.poisson(self.rate * self.slot_s, size=min(SLOTS_AT_ONCE, num_slots - start))
            used = np.flatnonzero(draws)
            times.append(np.repeat((start + used) * round(self.slot_s * PS), draws[used]))
        return np.concatenate(times)


class Replay(ArrivalProcess):
    """The trace's own time stamps, `speedup` times as fast."""

    replays: ClassVar[bool] = True

    def __init__(self, speedup: float = 1.0) -> None:
        positive(speedup=speedup)
        self.speedup = speedup

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        if rows is None or rows.arrival_s is None:
            raise InputError(
                "arrivals=replay needs a trace with time stamps: this one has none; choose arrivals=poisson"
            )
        return np.rint(rows.arrival_s / self.speedup * PS).astype(np.int64)


class Sessions(ArrivalProcess):
    """A closed loop: the next request of a session goes out its think time after the last answer has ended.

    `at_once` sessions are open at any time while the trace has more; the first ones start start_gap_s apart. Longer
    think times than max_think_s, if given, are cut to it: a person who was away for a day.
    """

    replays: ClassVar[bool] = True

    def __init__(self, at_once: int = 16, start_gap_s: float = 10.0, max_think_s: float | None = None) -> None:
        if at_once < 1:
            raise InputError(f"arrivals.at_once is {at_once}; it must be at least 1 session")
        self.at_once = at_once
        self.start_gap_s = start_gap_s
        self.max_think_s = max_think_s

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        raise InputError("arrivals=sessions has no times of its own; they depend on when answers end")

    def workload(self, rows: Rows, num_seqs: int, beam: bool) -> SessionWorkload:
        """The rows of a whole trace that says which of them wait for others."""
        if rows.turns is None:
            raise InputError(
                "arrivals=sessions needs a trace that says which request waits for which answer: trace=agent_sessions"
            )
        if self.max_think_s is not None:
            rows = replace(rows, turns=rows.turns.within(self.max_think_s))
        rows = in_likely_order(rows, self.at_once, self.start_gap_s)
        unknown = np.zeros(len(rows), np.int64)
        return SessionWorkload(rows, unknown, num_seqs, beam, self.at_once, round(self.start_gap_s * PS))


def renewal_times(rng: np.random.Generator, shape: float, rate: float, duration_s: float) -> Column:
    """Arrivals before duration_s of a renewal process with gamma gaps of mean 1 / rate."""
    times, start = [np.empty(0)], 0.0
    while start < duration_s:
        gaps = rng.gamma(shape, 1 / (rate * shape), size=int(rate * duration_s * 1.1) + 64)
        times.append(start + np.cumsum(gaps))
        start = times[-1][-1]
    seconds = np.concatenate(times)
    return np.rint(seconds[seconds < duration_s] * PS).astype(np.int64)
