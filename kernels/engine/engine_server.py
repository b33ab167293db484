"""The process of an engine behind a server: requests come and tokens go through a connection."""

import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.engine.listeners import TokenListener
from testbed.engine.wall_clock import WallAlarm, WallClock
from testbed.kernels.engine.gpu_engine import EndTokens, GpuEngine
from testbed.kernels.engine.parallel.watch import WorkerError
from testbed.kernels.engine.sampler import TopP
from testbed.kernels.engine.served_run import make_engine
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig
from testbed.serving.live import State
from testbed.serving.messages import (
    Arrived,
    Cancelled,
    Closed,
    Event,
    Finished,
    Message,
    News,
    Ready,
    Refused,
    Rejected,
    Stepped,
    Submitted,
    Withdrawn,
)
from testbed.serving.requests_to_come import unknown_requests
from testbed.serving.token_draws import Draws


class ServerClock(WallClock):
    """Real time that sends what has happened before it sleeps."""

    server: "EngineServer | None" = None

    def _sleep_until(self, at_ps: int) -> None:
        self._send()
        super()._sleep_until(at_ps)

    def _poll_until(self, at_ps: int, alarm: WallAlarm) -> None:
        self._send()
        super()._poll_until(at_ps, alarm)

    def _send(self) -> None:
        if self.server is not None:
            self.server.send()


class PendingToken(NamedTuple):
    """A token of a request that came at time_ps. The tokens of an iteration are read together when
    the first is sent.
    """

    request_id: int
    time_ps: int


class EngineServer(TokenListener):
    """Hands an engine what comes through the connection, and sends what becomes of it.

    A thread of its own waits for messages; all else happens in the engine's thread: what an
    iteration has brought is sent while the GPU computes the next one.
    """

    def __init__(self, engine: GpuEngine, clock: ServerClock, connection: Connection) -> None:
        self._engine = engine
        self._clock = clock
        self._connection = connection
        self._events: list[Event | PendingToken] = []
        self._num_sent: dict[int, int] = {}
        engine.engine.listen_to_tokens(self)
        engine.executor.while_computing = self.send

    def run(self) -> None:
        """Serve until the connection says that no request will come, or ends."""
        self._clock.server = self
        with self._engine.serving(()):
            threading.Thread(target=self._listen, daemon=True).start()
            self._engine.run()
        self.send()

    def send(self) -> None:
        """Send what has happened since the last time."""
        if self._events:
            events, self._events = list(map(self._resolved, self._events)), []
            self._connection.send(News(events, self._state()))
            self._engine.records.iterations.clear()

    def _listen(self) -> None:
        while True:
            try:
                message: Message = self._connection.recv()
            except EOFError:  # the server has gone
                message = Closed()
            self._clock.post(partial(self._handle, message, self._clock.now_ps))
            if isinstance(message, Closed):
                return

    def _handle(self, message: Message, now_ps: int) -> None:
        """Handle what came at now_ps, in the engine's thread."""
        engine = self._engine.engine
        if isinstance(message, Submitted):
            self._submit(message, message.request._replace(arrival_ps=now_ps))
        elif isinstance(message, Withdrawn):
            engine.cancel(message.request_id)
        else:
            for request_id in list(engine.outputs.requests):
                engine.cancel(request_id)
            engine.close()

    def _submit(self, message: Submitted, request: Request) -> None:
        executor, request_id = self._engine.executor, request.request_id
        self._events.append(Arrived(request_id, request.arrival_ps))
        sampler = executor.runner.sampler
        sampler.rules[request_id] = _rule(message.draws, sampler.parallel.seed)
        if message.end_ids:
            executor.end_tokens[request_id] = EndTokens(message.end_ids)
        self._num_sent[request_id] = 0
        if not self._engine.engine.submit(request):
            del sampler.rules[request_id]
            executor.end_tokens.pop(request_id, None)

    def _state(self) -> State:
        state, totals = self._engine.scheduler.state, self._engine.records.recorder.totals
        usage = state.policy.usage()
        preemptions = totals.swaps + totals.recomputes
        return State(state.num_seqs, state.num_queued_seqs, usage.held / usage.total, preemptions)

    def on_tokens(self, request_id: int, count: int, time_ps: int) -> None:
        self._events += [PendingToken(request_id, time_ps)] * count

    def _resolved(self, event: Event | PendingToken) -> Event:
        if not isinstance(event, PendingToken):
            return event
        return Stepped(event.request_id, event.time_ps, self._news_of(event.request_id))

    def _resolve(self, request_id: int) -> None:
        """Read the tokens of a request that leaves the engine."""
        self._events = [
            self._resolved(event) if event[0] == request_id else event for event in self._events
        ]

    def _news_of(self, request_id: int) -> tuple[tuple[int, ...], ...]:
        """The steps of a request that were not sent yet."""
        records, num_sent = self._engine.records, self._num_sent[request_id]
        outputs = records.outputs.get(request_id)
        if outputs is None:
            group = self._engine.scheduler.state.find(request_id)
            if group is None or group.request.beam:
                return ()
            outputs = self._engine.executor.outputs_of(group, num_sent)
        else:
            outputs = [tokens[num_sent:] for tokens in self._ranked(request_id, outputs)]
        steps = tuple(zip(*outputs, strict=True))
        self._num_sent[request_id] += len(steps)
        return steps

    def _ranked(self, request_id: int, outputs: list[list[int]]) -> list[list[int]]:
        """The sequences of a beam by their log-probability; others as they are."""
        scores = self._engine.records.scores.get(request_id)
        if scores is None:
            return outputs
        order = sorted(range(len(outputs)), key=lambda i: (-scores[i], i))
        return [outputs[i] for i in order]

    def on_finished(self, request_id: int, time_ps: int) -> None:
        self._resolve(request_id)
        del self._engine.records.outputs[request_id], self._num_sent[request_id]
        self._engine.records.scores.pop(request_id, None)
        self._events.append(Finished(request_id))

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        del self._num_sent[request_id]
        self._events.append(Rejected(request_id, reason))

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        self._resolve(request_id)
        del self._num_sent[request_id]
        self._events.append(Cancelled(request_id))


def _rule(draws: Draws | None, seed: int) -> TopP | None:
    if draws is None:
        return None
    if draws.seed is None:
        return TopP(draws.temperature, draws.top_p, seed)
    return TopP(draws.temperature, draws.top_p, draws.seed % (1 << 64), own_seed=True)


def serve_connection(connection: Connection, config: RunConfig) -> None:
    """The whole life of the process: build the engine, say so, serve."""
    try:
        setup = build(config, unknown_requests())
        check_ends(setup)
        clock = ServerClock()
        engine = make_engine(setup, clock=clock)
    except InputError as error:
        connection.send(Refused(error))
        return
    except WorkerError as error:
        connection.send(Refused(InputError(key="engine", problem=error)))
        return
    connection.send(Ready(engine.runner.token_buffers.vocab_size))
    try:
        with engine:
            EngineServer(engine, clock, connection).run()
    except WorkerError as error:
        print(f"engine: error: {error}", file=sys.stderr, flush=True)


def check_ends(setup: Setup) -> None:
    """Refuse a scheduler that plans before it is known which requests have ended."""
    if setup.scheduler.plans_ahead:
        raise InputError(
            key="scheduler",
            problem="plans ahead of the tokens that end a request",
            remedy="choose one that does not",
        )
