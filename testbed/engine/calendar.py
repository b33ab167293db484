"""What happens to an engine between its plans: expected events and marks, and transfers in the
background that land.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import simpy

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import DEVICE, Transfer
from testbed.cost.model import UNBOUNDED, CostModel, counted


class Urgent(simpy.Event):
    """An arrival or a landing: before anything else at its time, so that an iteration that ends
    then sees it.
    """

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=simpy.events.URGENT, delay=delay)


class Calendar:
    """Expected events, such as arrivals, and marks; all times are in ps.

    expected_ps and mark_ps: the first expected event that has not happened, and the next mark;
    UNBOUNDED where there is none. stop_ps is a mark too, unless it is UNBOUNDED. is_in_span:
    several iterations, which an arrival would have ended, are being carried out at once.
    """

    def __init__(self, env: simpy.Environment, marks_ps: Iterable[int], stop_ps: int) -> None:
        self.stop_ps = stop_ps
        self.is_in_span = False
        self._env = env
        self._expected = [UNBOUNDED]
        self._marks = sorted({*marks_ps, stop_ps, UNBOUNDED}, reverse=True)
        self.mark_ps = self._marks[-1]
        self._wake: simpy.Event | None = None

    def expect(self, at_ps: int) -> None:
        """Announce an event before the span begins that it could end."""
        heapq.heappush(self._expected, at_ps)

    @property
    def expected_ps(self) -> int:
        """When the first expected event that has not happened is to happen."""
        return self._expected[0]

    def happened(self, request: Request) -> None:
        """The first expected event happens now; raises PlugInError if none was expected and it
        would end a span.
        """
        if self._expected[0] <= self._env.now:
            heapq.heappop(self._expected)
        elif self.is_in_span:
            what = f"request {request.request_id} at {self._env.now} ps"
            raise PlugInError(f"{what}: would have ended a span (call expect() in advance)")

    def take_marks(self, until_ps: int) -> list[int]:
        """The marks up to until_ps that were not taken before, in order."""
        passed = list[int]()
        while self.mark_ps <= until_ps:
            passed.append(self._marks.pop())
            self.mark_ps = self._marks[-1]
        return passed

    def awake(self, wake_ps: int) -> simpy.Event:
        """An event that happens at the next `rouse`, at wake_ps or at stop_ps."""
        self._wake, now_ps = self._env.event(), int(self._env.now)
        if wake_ps <= now_ps:
            raise PlugInError(
                f"a scheduler asks at {now_ps} ps to plan again at {wake_ps} ps, which is not later"
            )
        until_ps = min(self.stop_ps, wake_ps)
        return (
            self._wake
            if until_ps == UNBOUNDED
            else self._wake | self._env.timeout(until_ps - now_ps)
        )

    def rouse(self) -> None:
        """Something has happened for which an idle engine waits."""
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None


@dataclass(slots=True)
class Flow:
    """A transfer that has left_ps picoseconds to go if it had the link to itself."""

    move_id: int
    is_load: bool
    left_ps: int


@dataclass(slots=True)
class Link:
    """The transfers of one tier, in both directions.

    Loads share the link equally; while there are any, stores wait, and then share it too. Every
    picosecond of a share is a whole one: what dividing leaves over is lost.
    """

    flows: list[Flow] = field(default_factory=list)
    since_ps: int = 0

    def served(self) -> list[Flow]:
        return [flow for flow in self.flows if flow.is_load] or self.flows

    @property
    def next_ps(self) -> int:
        """When the next transfer lands if none begins before."""
        served = self.served()
        return (
            self.since_ps + len(served) * min(flow.left_ps for flow in served)
            if served
            else UNBOUNDED
        )

    def begin(self, flow: Flow, now_ps: int) -> None:
        """One transfer more; `land` was called up to now."""
        served = self.served()
        for one in served:
            one.left_ps -= (now_ps - self.since_ps) // len(served)
        self.since_ps = now_ps
        self.flows.append(flow)

    def land(self, now_ps: int) -> list[int]:
        """The transfers that have landed by now, in order."""
        landed = list[int]()
        while self.next_ps <= now_ps:
            served = self.served()
            self.since_ps, least = self.next_ps, min(flow.left_ps for flow in served)
            for flow in served:
                flow.left_ps -= least
            landed += [flow.move_id for flow in served if not flow.left_ps]
            self.flows = [flow for flow in self.flows if flow.left_ps or flow not in served]
        return landed


class Links:
    """The links of one engine, by tier; `on_landed` is called when a transfer has landed, whose id
    is then in `landed`.

    A tier has one link for both directions. Not modelled: that transfers slow down what the device
    computes meanwhile (mostly by less than 10%; `kernels/results/h200-profiles.md`), and that
    swaps, whose time is part of an iteration, may use the same wires.
    """

    def __init__(
        self, env: simpy.Environment, cost: CostModel, on_landed: Callable[[], None]
    ) -> None:
        self.landed: list[int] = []
        self.num_pending = 0
        self.next_ps = UNBOUNDED
        self._env = env
        self._cost = cost
        self._on_landed = on_landed
        self._links: dict[str, Link] = {}

    def begin(self, transfers: Iterable[Transfer]) -> None:
        for move_id, move in transfers:
            source, target, _ = move
            flow = Flow(move_id, target == DEVICE, max(self._cost.transfer(counted([move])), 1))
            now_ps = int(self._env.now)
            self._land(now_ps)
            self._links.setdefault(source if target == DEVICE else target, Link()).begin(
                flow, now_ps
            )
            self.num_pending += 1
            self._expect()

    def take_landed(self) -> list[int]:
        landed, self.landed = self.landed, []
        return landed

    def _expect(self) -> None:
        self.next_ps = min((link.next_ps for link in self._links.values()), default=UNBOUNDED)
        if self.next_ps < UNBOUNDED:
            now_ps = int(self._env.now)
            Urgent(self._env, self.next_ps - now_ps).callbacks.append(lambda _: self._wake())

    def _wake(self) -> None:
        if self.next_ps <= self._env.now:
            self._land(int(self._env.now))
            self._expect()

    def _land(self, now_ps: int) -> None:
        landed = [move_id for link in self._links.values() for move_id in link.land(now_ps)]
        self.num_pending -= len(landed)
        self.landed += landed
        if landed:
            self._on_landed()
