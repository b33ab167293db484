"""Calls listeners on the requests of an engine: each end, and each token."""

from collections.abc import Mapping

from testbed.core.request import Request
from testbed.engine.executor import Flight
from testbed.engine.listeners import Listener, TokenListener
from testbed.sched.plan import Outcome
from testbed.sched.state import SchedulerState


class Listeners:
    """All listeners of one engine, in the order in which they came.

    requests: those that the engine serves now, by id. has_listener: it has one; wants_tokens: one
    of them wants tokens.
    """

    def __init__(self, state: SchedulerState, requests: Mapping[int, Request]) -> None:
        self._state = state
        self._requests = requests
        self.has_listener = self.wants_tokens = False
        self._listeners: list[Listener] = []
        self._token_listeners: list[TokenListener] = []

    def add(self, listener: Listener) -> None:
        """Call the listener at the end of each request."""
        self._listeners.append(listener)
        self.has_listener = True

    def add_for_tokens(self, listener: TokenListener) -> None:
        """Call the listener at each token too."""
        self.add(listener)
        self._token_listeners.append(listener)
        self.wants_tokens = True

    def finished(self, request_id: int, now_ps: int) -> None:
        """The request has its whole output."""
        for listener in self._listeners:
            listener.on_finished(request_id, now_ps)

    def rejected(self, request_id: int, reason: str, now_ps: int) -> None:
        """The request could never run."""
        for listener in self._listeners:
            listener.on_rejected(request_id, reason, now_ps)

    def cancelled(self, request_id: int, now_ps: int) -> None:
        """The request was cancelled."""
        for listener in self._listeners:
            listener.on_cancelled(request_id, now_ps)

    def list_decoding(self, flight: Flight) -> None:
        """A plan begins: note which requests take its decode steps."""
        plan = flight.plan
        steps = {seq.request_id: None for seq in self._state.batch}
        decoding = list(steps) if plan.decode_seqs else []
        decoding += [draft.group.request_id for draft in plan.drafts]
        flight.decoding = decoding + flight.stepping

    def step_ended(self, flight: Flight, now_ps: int) -> None:
        """An iteration of a span has ended, which is not its last."""
        for request_id in flight.decoding:
            self._send_tokens(request_id, 1, now_ps)

    def last_step_ended(
        self, flight: Flight, outcome: Outcome, accepted: Mapping[int, int], now_ps: int
    ) -> None:
        """The last iteration has ended. First tokens are sent first: their clients wait longest.

        accepted: drafts that became tokens, by request id.
        """
        for group in outcome.first_tokens:
            self._send_tokens(group.request_id, 1, now_ps)
        for request_id in flight.decoding:
            if request_id in self._requests:
                self._send_tokens(request_id, 1 + accepted.get(request_id, 0), now_ps)

    def _send_tokens(self, request_id: int, num_tokens: int, now_ps: int) -> None:
        for listener in self._token_listeners:
            listener.on_tokens(request_id, num_tokens, now_ps)
