"""A simulation in real time, driven from asyncio, for a server whose iterations are simulated."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from testbed.core.request import PS
from testbed.engine.sim_clock import SimClock

BURST_S = 0.01  # the loop lets other tasks run after so long
AWAKE_S = 0.001  # a sleep may end so much late: the last millisecond is waited awake
HEAD_START_S = 0.0005  # before an event's time its Python begins, which takes longer


class RealTimeClock:
    """Lets simulated time pass `speed` times as fast as real time, from now on.

    `run` makes the events of a SimClock happen at their times, and goes on when there are none, so
    that requests may come at any time; SimPy's own RealtimeEnvironment blocks while it waits and
    ends when nothing is scheduled. All methods belong to the thread of the asyncio loop. lag_s: by
    how much simulated time is behind, in s of real time, and max_lag_s: the most so far. now_s is
    for tests.
    """

    def __init__(
        self, clock: SimClock, speed: float = 1.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.speed = speed
        self.lag_s = 0.0
        self.max_lag_s = 0.0
        self._now_s = now_s
        self._origin_s = now_s()
        self._origin_ps = clock.now_ps
        self._woken = asyncio.Event()
        self._is_closed = False

    @property
    def due_ps(self) -> int:
        """The simulated time that it should be now."""
        return self._at_ps(self._now_s())

    def _at_ps(self, moment_s: float) -> int:
        return self._origin_ps + round((moment_s - self._origin_s) * self.speed * PS)

    def call(self, callback: Callable[[], object], since_s: float | None = None) -> int:
        """Call back at the simulated time that it should be now, such as a `submit` or `cancel`;
        returns that time. It is called by `run`, before any engine takes its turn then.

        since_s: when its cause was there, by now_s; what has been simulated since is not undone.
        """
        cause_ps = self.due_ps if since_s is None else self._at_ps(since_s)
        at_ps = max(cause_ps, self.clock.now_ps)
        self.clock.call_at(at_ps, callback)
        self._woken.set()
        return at_ps

    def close(self) -> None:
        """End `run` when the events that are due have happened."""
        self._is_closed = True
        self._woken.set()

    async def run(self) -> None:
        """Let events happen at their times, until `close`."""
        while True:
            self._woken.clear()
            all_happened = self._happen()
            if not all_happened:
                await asyncio.sleep(0)
            elif self._is_closed:
                return
            else:
                await self._sleep()

    def _happen(self) -> bool:
        """Let events happen that are due; False if there are more than fit a burst."""
        env, end_s = self.clock.env, self._now_s() + BURST_S
        while (next_ps := env.peek()) <= self._at_ps(self._now_s() + HEAD_START_S):
            self.lag_s = max(self.due_ps - next_ps, 0) / PS / self.speed
            self.max_lag_s = max(self.max_lag_s, self.lag_s)
            env.step()
            if self._now_s() >= end_s:
                return False
        self.lag_s = 0.0
        return True

    async def _sleep(self) -> None:
        """Sleep until the next event is due, or until something is called or closed."""
        next_ps = self.clock.env.peek()
        delay_s = None
        if next_ps != float("inf"):
            delay_s = (next_ps - self.due_ps) / PS / self.speed - AWAKE_S - HEAD_START_S
        if delay_s is not None and delay_s <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), delay_s)
