"""The engine's time: the machine's own, or for tests one that iterations and waits push on."""

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """Seconds since the run began."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began."""

    @abstractmethod
    def sleep_until(self, when: float) -> None:
        """Return once it is `when`."""

    @abstractmethod
    def restart(self) -> None:
        """The run begins now."""

    @abstractmethod
    def iteration_ended(self) -> None:
        """An iteration has run; a clock of its own takes notice."""


class RealClock(Clock):
    """The machine's; it begins when it is made."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """See Clock."""
        self._start = time.perf_counter()

    def now(self) -> float:
        """See Clock."""
        return time.perf_counter() - self._start

    def sleep_until(self, when: float) -> None:
        """Sleeps, and spins for the last half millisecond."""
        while (left := when - self.now()) > 0:
            if left > 1e-3:
                time.sleep(left - 5e-4)

    def iteration_ended(self) -> None:
        """See Clock."""


class StepClock(Clock):
    """Every iteration takes iteration_s seconds: the same plans on every machine."""

    def __init__(self, iteration_s: float = 1.0) -> None:
        self._now = 0.0
        self._iteration_s = iteration_s

    def now(self) -> float:
        """See Clock."""
        return self._now

    def sleep_until(self, when: float) -> None:
        """See Clock."""
        self._now = max(self._now, when)

    def restart(self) -> None:
        """See Clock."""
        self._now = 0.0

    def iteration_ended(self) -> None:
        """See Clock."""
        self._now += self._iteration_s
