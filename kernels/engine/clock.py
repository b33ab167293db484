"""The engine's clocks, and the timer that divides an iteration's time between the host and the GPU."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Clock:
    """Wall-clock seconds since construction or the last restart."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Set the time to zero."""
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._start

    def sleep_until(self, when: float, sooner: Callable[[], bool] | None = None) -> None:
        """Sleep until a time in s, or until `sooner`, if given, is true; spin for the last half millisecond."""
        while (left := when - self.now()) > 0 and not (sooner and sooner()):
            if left > 1e-3:
                time.sleep(1e-4 if sooner else left - 5e-4)

    def iteration_ended(self) -> None:
        """Called after each iteration; StepClock advances here."""


class StepClock(Clock):
    """Every iteration takes iteration_s seconds: the same plans on every machine."""

    def __init__(self, iteration_s: float = 1.0) -> None:
        super().__init__()
        self._iteration_s = iteration_s

    def restart(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep_until(self, when: float, sooner: Callable[[], bool] | None = None) -> None:
        if sooner is None:
            self._now = max(self._now, when)
        while sooner and not sooner():
            time.sleep(1e-5)

    def iteration_ended(self) -> None:
        self._now += self._iteration_s


class Split(NamedTuple):
    """Seconds of one iteration."""

    host_s: float
    waited_s: float
    gpu_s: float


class Timer:
    """Divides an iteration's time: the host's, its wait for the device and, on a GPU, the device's by its own clock."""

    def __init__(self, on_gpu: bool = False) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        self._start = self._waited = self._wait_start = 0.0
        self._begun = False

    def start(self) -> None:
        """Called when the iteration begins, before planning."""
        self._start, self._waited, self._begun = time.perf_counter(), 0.0, False

    def launched(self) -> None:
        """Called before the device's first work; only the first call of an iteration counts."""
        if self._events and not self._begun:
            self._begun = True
            self._events[0].record()

    def wait(self) -> None:
        """Called when all device work has been launched and the host begins to wait for it."""
        if self._events:
            self._events[1].record()
        self._wait_start = time.perf_counter()

    def waited(self) -> None:
        """Called when the results have arrived."""
        self._waited += time.perf_counter() - self._wait_start

    def stop(self) -> Split:
        """Called when the iteration has been committed."""
        host_s, gpu_s = time.perf_counter() - self._start - self._waited, 0.0
        if self._begun:
            self._events[1].synchronize()
            gpu_s = float(self._events[0].elapsed_time(self._events[1])) / 1e3
        return Split(host_s, self._waited, gpu_s)
