"""The clock of a simulation: SimPy's environment, on which several engines take turns."""

from collections.abc import Callable
from typing import Any

import simpy
from simpy.events import NORMAL, URGENT

from testbed.cost.model import UNBOUNDED
from testbed.engine.clock import Alarm, Process, SharedClock
from testbed.engine.packed_rows import beyond_time

NEVER = -1


class Due(simpy.Event):
    """Happens after delay_ps. Events of one time happen in the order of their priorities."""

    def __init__(
        self,
        env: simpy.Environment,
        delay_ps: int,
        priority: int,
        callbacks: list[Callable[[simpy.Event], None]],
    ) -> None:
        self.env = env  # as simpy.Timeout does, which has no priority
        self.callbacks = callbacks
        self._ok = True
        self._value = None
        if delay_ps < UNBOUNDED:
            env.schedule(self, priority, delay_ps)  # type: ignore[arg-type]


class SimAlarm(Alarm):
    """An event that is replaced by an earlier one when the alarm is brought forward.

    At one time all other events happen first, then the engines' turns in order of rank, each
    followed by the events that it has caused. So it does not matter in which order events were
    scheduled, which differs between a run in spans and one step by step.
    """

    def __init__(self, clock: "SimClock", rank: int) -> None:
        self._clock = clock
        self._env = clock.env
        self._rank = rank
        self._priority = NORMAL + 1 + rank
        self._event: Any = None
        self._at_ps = NEVER
        self._last_ps = NEVER  # when it rang before it was set again

    def set(self, at_ps: int) -> Any:
        if at_ps > UNBOUNDED:
            raise beyond_time(at_ps)
        self._last_ps, self._at_ps = self._at_ps, at_ps
        event, delay_ps = self._event, at_ps - int(self._env.now)
        if event is None or event.callbacks is not None or at_ps == UNBOUNDED:
            delay_ps = UNBOUNDED if at_ps == UNBOUNDED else delay_ps
            event = self._event = Due(self._env, delay_ps, self._priority, [])
        else:  # it has happened, and SimPy has let go of it
            event.callbacks = []
            self._env.schedule(event, self._priority, delay_ps)  # type: ignore[arg-type]
        return event

    def bring_forward(self, at_ps: int) -> None:
        waiting = self._event.callbacks if at_ps < self._at_ps else None
        if waiting:
            self._event.callbacks = []  # the later event remains in SimPy's queue, and does nothing
            self._at_ps = at_ps
            delay_ps = at_ps - int(self._env.now)
            self._event = Due(self._env, delay_ps, self._priority, waiting)

    def has_rung(self) -> bool:
        now_ps = self._clock.now_ps
        return any(alarm.rang_at(now_ps) for alarm in self._clock.alarms[self._rank :])

    def rang_at(self, now_ps: int) -> bool:
        """True if it has rung at the present time."""
        return self._last_ps == now_ps or (self._at_ps == now_ps and self._event.processed)


class SimClock(SharedClock):
    """SimPy's environment. alarms: of the engines on the clock, in their order."""

    def __init__(self, env: simpy.Environment | None = None) -> None:
        self.env = env or simpy.Environment(0)
        self.alarms: list[SimAlarm] = []

    @property
    def now_ps(self) -> int:
        return int(self.env.now)  # whole already, because every delay is; SimPy allows floats

    def catch_up(self) -> int:
        return int(self.env.now)

    def call_at(self, at_ps: int, callback: Callable[[], object]) -> None:
        callbacks: list[Any] = [lambda _: callback()]
        Due(self.env, at_ps - self.now_ps, URGENT, callbacks)

    def alarm(self) -> SimAlarm:
        alarm = SimAlarm(self, len(self.alarms))
        self.alarms.append(alarm)
        return alarm

    def start(self, process: Process) -> simpy.Process:
        loop = self.env.process(process)
        loop.callbacks.append(_raise_error)
        return loop


def _raise_error(loop: simpy.Event) -> None:
    """Raise the error that ended the loop of an engine. SimPy makes another one of its arguments,
    unless the run waits for this loop, and an InputError has none.
    """
    error: Any = loop.value
    if not loop.ok:
        raise error
