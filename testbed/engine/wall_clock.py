"""Real time on this machine, for an engine on a GPU."""

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count

from testbed.core.errors import PlugInError
from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED
from testbed.engine.clock import Alarm, Clock, Process

SPIN_PS = PS // 2000  # a sleep may end so much late: the last half millisecond is waited awake


class WallAlarm(Alarm):
    """The event that an engine's loop yields to sleep until at_ps."""

    def __init__(self, clock: "WallClock") -> None:
        self._clock = clock
        self.at_ps = 0

    def set(self, at_ps: int) -> "WallAlarm":
        self.at_ps = at_ps
        return self

    def bring_forward(self, at_ps: int) -> None:
        self.at_ps = min(self.at_ps, at_ps)


class WallClock(Clock):
    """Time since construction or the last restart. `run` runs one engine's loop in its thread.

    Other threads hand over work by `post`. poll, if set, is called all the time while the loop
    sleeps and is_polled() is true; it may bring the alarm forward.
    """

    def __init__(self) -> None:
        self.poll: Callable[[], None] | None = None
        self.is_polled: Callable[[], bool] = lambda: False
        self._calls: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = count()
        self._posted = threading.Event()
        self._posts: list[Callable[[], object]] = []
        self.restart()

    def restart(self) -> None:
        """Set the time to zero."""
        self._start = time.perf_counter()

    @property
    def now_ps(self) -> int:
        return round((time.perf_counter() - self._start) * PS)

    def call_at(self, at_ps: int, callback: Callable[[], object]) -> None:
        heapq.heappush(self._calls, (at_ps, next(self._serial), callback))

    def post(self, callback: Callable[[], object]) -> None:
        """Call back before the engine's next turn; any thread may call this."""
        self._posts.append(callback)
        self._posted.set()

    def alarm(self) -> WallAlarm:
        return WallAlarm(self)

    def catch_up(self) -> int:
        if self._posts:
            self._posted.clear()
            while self._posts:
                self._posts.pop(0)()
        while self._calls and self._calls[0][0] <= self.now_ps:
            heapq.heappop(self._calls)[2]()
        return self.now_ps

    def run(self, process: Process) -> None:
        """Run an engine's loop to its end."""
        for alarm in process:
            self.catch_up()
            while self.now_ps < alarm.at_ps:
                if self.poll is not None and self.is_polled():
                    self._poll_until(self._next_ps(alarm), alarm)
                else:
                    self._sleep_until(self._next_ps(alarm))
                self.catch_up()

    def iteration_ended(self) -> None:
        """Called after each iteration; StepClock advances here."""

    def _next_ps(self, alarm: WallAlarm) -> int:
        return min(alarm.at_ps, self._calls[0][0] if self._calls else UNBOUNDED)

    def _sleep_until(self, at_ps: int) -> None:
        """Sleep until a time, or until something is posted."""
        while (left_ps := at_ps - self.now_ps) > 0 and not self._posts:
            if at_ps == UNBOUNDED:
                self._posted.wait()
            elif left_ps > 2 * SPIN_PS:
                self._posted.wait((left_ps - SPIN_PS) / PS)

    def _poll_until(self, at_ps: int, alarm: WallAlarm) -> None:
        """Poll until a time, or until something is posted; a poll may bring the alarm forward."""
        assert self.poll is not None
        while self.now_ps < min(at_ps, alarm.at_ps) and not self._posts:
            self.poll()
            if at_ps - self.now_ps > 2 * SPIN_PS:
                time.sleep(1e-4)


class StepClock(WallClock):
    """Every iteration takes iteration_s seconds: the same plans on every machine."""

    def __init__(self, iteration_s: float = 1.0) -> None:
        super().__init__()
        self._iteration_ps = round(iteration_s * PS)

    def restart(self) -> None:
        self._now_ps = 0

    @property
    def now_ps(self) -> int:
        return self._now_ps

    def iteration_ended(self) -> None:
        self._now_ps += self._iteration_ps

    def _sleep_until(self, at_ps: int) -> None:
        if at_ps == UNBOUNDED and not self._posts:
            raise PlugInError("an engine waits for ever: nothing is to happen on its clock")
        self._now_ps = max(self._now_ps, at_ps)

    def _poll_until(self, at_ps: int, alarm: WallAlarm) -> None:
        """Time stands still until what is polled has happened."""
        assert self.poll is not None
        while alarm.at_ps > self._now_ps:
            self.poll()
            time.sleep(1e-5)
