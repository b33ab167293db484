"""Who sends the requests: an open loop at their own times, or a closed one, as answers come."""

from collections.abc import Iterable

import simpy

from testbed.core.request import PS, Request
from testbed.sim.arrivals import SessionWorkload
from testbed.sim.calendar import Urgent
from testbed.sim.engine import Engine, ProcessGenerator


def open_loop(env: simpy.Environment, engine: Engine, requests: Iterable[Request]) -> ProcessGenerator:
    """Submit requests at their own times, whatever the engine does."""
    for request in requests:
        now_ps, arrival_ps = int(env.now), request.arrival_ps
        engine.expect(max(arrival_ps, now_ps))
        if arrival_ps > now_ps:
            yield Urgent(env, arrival_ps - now_ps)
        engine.submit(request)
    engine.close()


class ClosedLoop:
    """Sends the requests of a session workload to an engine, which reports when each has ended.

    A request that is rejected has ended too: its session goes on. What follows an answer at once misses the plan that
    is made at that very moment, as a client's would.
    """

    def __init__(self, env: simpy.Environment, engine: Engine, workload: SessionWorkload) -> None:
        turns = workload.turns
        self._env = env
        self._engine = engine
        self._workload = workload
        self._requests = list(workload)
        self._wait_ps = [round(wait * PS) for wait in turns.wait_s.tolist()]
        self._session: list[int] = turns.session.tolist()
        self._num_awaited = [len(before) for before in turns.after]
        self._followers: list[list[int]] = [[] for _ in self._requests]
        self._openers: list[list[int]] = [[] for _ in range(turns.num_sessions)]
        self._left = [0] * turns.num_sessions
        self._unsent = len(self._requests)
        self._next_session = 0
        for row, before in enumerate(turns.after):
            self._left[self._session[row]] += 1
            for one in before:
                self._followers[one].append(row)
            if not before:
                self._openers[self._session[row]].append(row)

    def start(self) -> None:
        self._engine.ended = self._ended
        if not self._unsent:
            self._engine.close()
        for slot in range(min(self._workload.at_once, len(self._left))):
            self._open_next(slot * self._workload.gap_ps)

    def _open_next(self, delay_ps: int) -> None:
        session, self._next_session = self._next_session, self._next_session + 1
        if session < len(self._left):
            for row in self._openers[session]:
                self._send(row, delay_ps + self._wait_ps[row])

    def _send(self, row: int, delay_ps: int) -> None:
        self._engine.expect(int(self._env.now) + delay_ps)
        Urgent(self._env, delay_ps).callbacks.append(lambda _: self._submit(row))

    def _submit(self, row: int) -> None:
        self._unsent -= 1
        if not self._unsent:
            self._engine.close()
        self._engine.submit(self._requests[row]._replace(arrival_ps=int(self._env.now)))

    def _ended(self, row: int) -> None:
        for follower in self._followers[row]:
            self._num_awaited[follower] -= 1
            if not self._num_awaited[follower]:
                self._send(follower, self._wait_ps[follower])
        session = self._session[row]
        self._left[session] -= 1
        if not self._left[session]:
            self._engine.scheduler.close_session(session)
            self._open_next(0)
