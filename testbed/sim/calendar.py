"""The calendar of an engine: the events that end a span of iterations, and what an idle engine waits for."""

import heapq
from collections.abc import Iterable

import simpy

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED


class Urgent(simpy.Event):
    """An arrival or a landing: happens after `delay`, before anything else that happens then.

    An iteration that ends at that very moment must see it, whatever was scheduled first.
    """

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=simpy.events.URGENT, delay=delay)


class Calendar:
    """Expected events, such as arrivals, and marks; all times are in ps.

    expected_ps and mark_ps: the first expected event that has not happened, and the next mark; UNBOUNDED where there is
    none. stop_ps is a mark too, unless it is UNBOUNDED. is_in_span: several iterations, which an arrival would have
    ended, are being carried out at once.
    """

    def __init__(self, env: simpy.Environment, marks_ps: Iterable[int], stop_ps: int) -> None:
        self.stop_ps = stop_ps
        self.is_in_span = False
        self._env = env
        self._expected: list[int] = []
        self._marks = sorted({*marks_ps, stop_ps} - {UNBOUNDED}, reverse=True)
        self.mark_ps = self._marks[-1] if self._marks else UNBOUNDED
        self._wake: simpy.Event | None = None

    def expect(self, at_ps: int) -> None:
        """Announce an event before the span begins that it could end."""
        heapq.heappush(self._expected, at_ps)

    @property
    def expected_ps(self) -> int:
        """When the first expected event that has not happened is to happen."""
        return self._expected[0] if self._expected else UNBOUNDED

    def happened(self, request: Request) -> None:
        """The first expected event happens now; raises PlugInError if none was expected and it would end a span."""
        if self._expected and self._expected[0] <= self._env.now:
            heapq.heappop(self._expected)
        elif self.is_in_span:
            what = f"request {request.request_id} at {self._env.now} ps"
            raise PlugInError(f"{what}: would have ended a span (call expect() in advance)")

    def take_marks(self, until_ps: int) -> list[int]:
        """The marks up to until_ps that were not taken before, in order."""
        passed = list[int]()
        while self.mark_ps <= until_ps:
            passed.append(self._marks.pop())
            self.mark_ps = self._marks[-1] if self._marks else UNBOUNDED
        return passed

    def awake(self, wake_ps: int) -> simpy.Event:
        """An event that happens at the next `rouse`, at wake_ps or at stop_ps."""
        self._wake, now_ps = self._env.event(), int(self._env.now)
        if wake_ps <= now_ps:
            raise PlugInError(f"a scheduler asks at {now_ps} ps to plan again at {wake_ps} ps, which is not later")
        until_ps = min(self.stop_ps, wake_ps)
        return self._wake if until_ps == UNBOUNDED else self._wake | self._env.timeout(until_ps - now_ps)

    def rouse(self) -> None:
        """Something has happened for which an idle engine waits."""
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
