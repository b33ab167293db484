"""The arrivals of an open loop as times that an engine compares, without an event for each."""

from collections.abc import Callable, Iterable

from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED


class DueArrivals:
    """Requests in order of arrival, which the one engine that serves them takes at its boundaries:
    as if each were submitted at its own time (`OpenLoop`), if nothing else sees the queue.

    never_fits: why a request could never run; empty if it could. next_ps: when the next request
    arrives. next_served_ps: when the next one arrives that could run, and so could end a span.
    wake_ps: when the first of these arrives that wakes an idle engine, or the last request of all.
    closes: no other request comes after the last of these.
    """

    def __init__(
        self, requests: Iterable[Request], never_fits: Callable[[Request], str], *, closes: bool
    ) -> None:
        self.closes = closes
        self.next_ps = self.next_served_ps = self.wake_ps = UNBOUNDED
        self._requests = iter(requests)
        self._never_fits = never_fits
        self._ahead: list[tuple[Request, str]] = []  # up to one that could run, the last one first
        self._look_ahead()

    def take(self) -> tuple[Request, str]:
        """The next request, at `next_ps`, and the reason why it could never run."""
        ahead = self._ahead
        taken = ahead.pop()
        if ahead:
            self.next_ps = ahead[-1][0].arrival_ps
        else:
            self._look_ahead()
        return taken

    def _look_ahead(self) -> None:
        """Find the next request that could run, and those before it."""
        ahead, never_fits = self._ahead, self._never_fits
        self.next_ps = self.next_served_ps = self.wake_ps = UNBOUNDED
        for request in self._requests:
            reason, self.wake_ps = never_fits(request), request.arrival_ps
            if not ahead:
                self.next_ps = self.wake_ps
            ahead.append((request, reason))
            if not reason:
                self.next_served_ps = self.wake_ps
                break
        ahead.reverse()
