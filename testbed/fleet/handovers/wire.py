"""The link of one prefill engine, which its hand-overs share."""

from collections.abc import Callable

from testbed.cost.model import UNBOUNDED
from testbed.engine.clock import Clock
from testbed.engine.links import Flow, Link


class Wire:
    """Transfers that share one link equally, each after its own latency."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._link = Link()
        self._on_landed: dict[int, Callable[[], None]] = {}
        self._num_sent = 0

    def send(self, latency_ps: int, left_ps: int, on_landed: Callable[[], None]) -> int:
        """Send what takes left_ps by itself, behind a latency; the number of the transfer."""
        number = self._num_sent
        self._num_sent += 1
        self._on_landed[number] = on_landed
        at_ps = self._clock.now_ps + latency_ps
        self._clock.call_at(at_ps, lambda: self._begin(number, left_ps))
        return number

    def drop(self, number: int) -> None:
        """The transfer ends without having landed, if it has not landed yet."""
        if self._on_landed.pop(number, None) is not None:
            self._land()
            self._link.drop(number, self._clock.now_ps)
            self._expect()

    def _begin(self, number: int, left_ps: int) -> None:
        if number in self._on_landed:
            self._land()
            self._link.begin(Flow(number, True, max(left_ps, 1)), self._clock.now_ps)
            self._expect()

    def _expect(self) -> None:
        next_ps = self._link.next_ps
        if next_ps < UNBOUNDED:
            self._clock.call_at(next_ps, self._wake)

    def _wake(self) -> None:
        if self._link.next_ps <= self._clock.now_ps:
            self._land()
            self._expect()

    def _land(self) -> None:
        for number in self._link.land(self._clock.now_ps):
            self._on_landed.pop(number)()
