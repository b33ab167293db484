"""Senders of requests: an open loop at their own times, or a closed one, as answers come."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Protocol

from testbed.core.request import PS, Request
from testbed.engine.arrivals import BoundedWorkload, SessionWorkload
from testbed.engine.clock import Clock
from testbed.engine.listeners import Listener


class Door(Protocol):
    """The interface by which clients submit requests: an engine, or a fleet of them."""

    def submit(self, request: Request) -> bool:
        """A request arrives now. False if it is rejected at once."""

    def close(self) -> None:
        """No request will be submitted any more, but for one that may be submitted right now."""

    def close_session(self, session: int) -> None:
        """The last request of the session has ended."""

    def listen(self, listener: Listener) -> None:
        """Call the listener at the end of each request."""


class OpenLoop:
    """Submits requests, in order of arrival, at their own times, whatever the engine does."""

    def __init__(self, clock: Clock, engine: Door, requests: Iterable[Request]) -> None:
        self._clock = clock
        self._engine = engine
        self._requests = iter(requests)
        self._next = next(self._requests, None)

    def start(self) -> None:
        """Submit what has arrived, and return when the next one does; at the end, close."""
        now_ps = self._clock.now_ps
        while self._next is not None and self._next.arrival_ps <= now_ps:
            self._engine.submit(self._next)
            self._next = next(self._requests, None)
        if self._next is None:
            self._engine.close()
        else:
            self._clock.call_at(self._next.arrival_ps, self.start)


class AnswerLoop(Listener):
    """Sends requests as the ends of others allow; a request that is rejected or cancelled has ended
    too. What follows an end at once misses the plan that is made at that very moment, as a client's
    would.
    """

    def __init__(self, clock: Clock, engine: Door, requests: list[Request]) -> None:
        self._clock = clock
        self._engine = engine
        self._requests = requests
        self._unsent = len(requests)

    def start(self) -> None:
        self._engine.listen(self)
        if not self._unsent:
            self._engine.close()

    def _submit(self, request: Request) -> None:
        self._unsent -= 1
        if not self._unsent:
            self._engine.close()
        self._engine.submit(request._replace(arrival_ps=self._clock.now_ps))

    def on_finished(self, request_id: int, time_ps: int) -> None:
        self._ended(request_id)

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        self._ended(request_id)

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        self._ended(request_id)

    def _ended(self, request_id: int) -> None:
        """The request is one whose end may let others go."""


class ClosedLoop(AnswerLoop):
    """Sends the requests of a session workload to an engine, which reports when each has ended; its
    session goes on then.
    """

    def __init__(self, clock: Clock, engine: Door, workload: SessionWorkload) -> None:
        super().__init__(clock, engine, list(workload))
        turns = workload.turns
        self._workload = workload
        self._wait_ps = [round(wait * PS) for wait in turns.wait_s.tolist()]
        self._session: list[int] = turns.session.tolist()
        # A row that waits for no other one waits for the start of its session, which stands as row
        # ~session.
        awaited = [before or (~self._session[row],) for row, before in enumerate(turns.after)]
        self._num_awaited = list(map(len, awaited))
        self._followers = defaultdict[int, list[int]](list)
        for row, awaited_rows in enumerate(awaited):
            for awaited_row in awaited_rows:
                self._followers[awaited_row].append(row)
        self._left = Counter(self._session)
        self._next_session = 0

    def start(self) -> None:
        super().start()
        workload = self._workload
        for slot in range(min(workload.at_once, workload.turns.num_sessions)):
            self._open_next(slot * workload.gap_ps)

    def _open_next(self, delay_ps: int) -> None:
        session, self._next_session = self._next_session, self._next_session + 1
        if session < self._workload.turns.num_sessions:
            self._answered(~session, delay_ps)

    def _answered(self, row: int, delay_ps: int = 0) -> None:
        """Send the requests whose last dependency was this one, after their think time."""
        for follower in self._followers[row]:
            self._num_awaited[follower] -= 1
            if not self._num_awaited[follower]:
                self._send(self._requests[follower], delay_ps + self._wait_ps[follower])

    def _send(self, request: Request, delay_ps: int) -> None:
        self._clock.call_at(self._clock.now_ps + delay_ps, lambda: self._submit(request))

    def _ended(self, request_id: int) -> None:
        self._answered(request_id)
        session = self._session[request_id]
        self._left[session] -= 1
        if not self._left[session]:
            self._engine.close_session(session)
            self._open_next(0)


class BoundedLoop(AnswerLoop):
    """Sends requests at their own times, but none while max_in_flight are unanswered: it goes out
    when an answer ends, behind those that were due before it, and arrives then. With all times 0 it
    keeps max_in_flight unanswered, a closed loop by concurrency.
    """

    def __init__(self, clock: Clock, engine: Door, workload: BoundedWorkload) -> None:
        super().__init__(clock, engine, list(workload)[::-1])  # those not yet due, the last first
        self._waiting = deque[Request]()
        self._free = workload.max_in_flight

    def start(self) -> None:
        super().start()
        self._wake()

    def _wake(self) -> None:
        """Send or keep what is due, and return when the next one is."""
        now_ps, later = self._clock.now_ps, self._requests
        while later and later[-1].arrival_ps <= now_ps:
            self._waiting.append(later.pop())
            if self._free:
                self._send_next()
        if later:
            self._clock.call_at(later[-1].arrival_ps, self._wake)

    def _send_next(self) -> None:
        """The first that waits goes out at this very moment, and takes a place from now on."""
        self._free -= 1
        request = self._waiting.popleft()
        self._clock.call_at(self._clock.now_ps, lambda: self._submit(request))

    def _ended(self, request_id: int) -> None:
        self._free += 1
        if self._waiting:
            self._send_next()


class Client(Protocol):
    """The sender of the requests of a run."""

    def start(self) -> None:
        """Send the first ones, and arrange for the rest."""


def client_of(clock: Clock, engine: Door, requests: Iterable[Request]) -> Client:
    """The client that sends these requests: as their workload says, or each at its own time."""
    if isinstance(requests, SessionWorkload):
        return ClosedLoop(clock, engine, requests)
    if isinstance(requests, BoundedWorkload):
        return BoundedLoop(clock, engine, requests)
    return OpenLoop(clock, engine, requests)
