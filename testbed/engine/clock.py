"""The time of an engine: the clocks of a simulation, of a simulation in real time, and of a GPU.

An engine's loop is a generator. It yields the event of its alarm or its executor, and the driver of
the loop (SimPy, or a `WallClock`) resumes it then. Time is a whole number of picoseconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

Process: TypeAlias = Generator[Any, None, None]


class Alarm(ABC):
    """Resumes one engine at a time, which may be brought forward while it waits."""

    @abstractmethod
    def set(self, at_ps: int) -> Any:
        """The event that the engine's loop yields to be resumed at at_ps; UNBOUNDED: when the alarm
        is brought forward.
        """

    @abstractmethod
    def bring_forward(self, at_ps: int) -> None:
        """Resume the engine at at_ps if it waits for a later time; else nothing changes."""

    def has_rung(self) -> bool:
        """True if the engine's turn at the present time is over: it comes no more before time goes
        on. Engines on one clock take their turns in the order in which their alarms were made.
        """
        return False


class Clock(ABC):
    """The time in picoseconds, and calls at given times."""

    @property
    @abstractmethod
    def now_ps(self) -> int:
        """Picoseconds since the start."""

    @abstractmethod
    def call_at(self, at_ps: int, callback: Callable[[], object]) -> None:
        """Call back at a time, which is not in the past: before any engine takes its turn then."""

    @abstractmethod
    def alarm(self) -> Alarm:
        """The alarm of one more engine."""

    def catch_up(self) -> int:
        """Make the calls that are due; the time now. A simulation has made them already."""
        return self.now_ps


class SharedClock(Clock):
    """The clock of several engines, which runs their loops by turns."""

    @abstractmethod
    def start(self, process: Process) -> Any:
        """Begin an engine's loop; the event of its end."""
