"""Simulated engines behind asyncio, whose time passes as fast as real time."""

import asyncio
from collections.abc import Callable
from functools import partial

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.engine.engine import Engine
from testbed.engine.listeners import Listener, TokenListener
from testbed.engine.real_time import RealTimeClock
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulated_engine
from testbed.fleet.fleet import Fleet
from testbed.fleet.fleet_simulation import make_fleet
from testbed.run.build import Setup
from testbed.run.fleet_run import fresh_parts
from testbed.run.fleet_setup import FleetSetup
from testbed.serving.live import Live, State
from testbed.serving.prometheus_metrics import Metrics
from testbed.serving.request_log import RequestLog
from testbed.serving.served_prompt import Served

ALONE_S = 0.001  # by which first tokens go ahead: a client that reads many streams reads them first


class LiveSimulation(Live, Listener):
    """One engine or several behind a router, whose simulated time passes `speed` times as fast as
    real time from `start` on.
    """

    def __init__(
        self, setup: Setup, metrics: Metrics, speed: float = 1.0, log: RequestLog | None = None
    ) -> None:
        check_no_faults(setup)
        super().__init__(setup.model.max_len, metrics, log)
        self.speed = speed
        self._clock = SimClock()
        self.door: Engine | Fleet = (
            self._engine(setup) if setup.fleet is None else self._fleet(setup, setup.fleet)
        )
        self.door.listen(self)
        for engine in self.engines:
            engine.listen_to_tokens(Tokens(self))
        self.real_time = RealTimeClock(self._clock, speed)
        self._task: asyncio.Task[None] | None = None
        self._beams = setup.parts.beams
        self._preparing = asyncio.Lock()
        self._pending: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def engines(self) -> list[Engine]:
        """The engines that serve."""
        door = self.door
        return [door] if isinstance(door, Engine) else [each.engine for each in door.replicas]

    def start(self) -> None:
        if isinstance(self.door, Fleet):
            self.door.start()
        else:
            self._clock.start(self.door.serve())
        self.real_time = RealTimeClock(self._clock, self.speed)
        self._task = asyncio.create_task(self.real_time.run())
        self._task.add_done_callback(self._run_ended)

    async def stop(self) -> None:
        self.cancel_all()
        while self.unfinished and self.is_alive:
            await asyncio.sleep(0.005)
        self.real_time.close()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.log is not None:
            self.log.close()

    @property
    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def state(self) -> State:
        states = [engine.scheduler.state for engine in self.engines]
        usages = [state.policy.usage() for state in states]
        totals = [engine.recorder.totals for engine in self.engines]
        return State(
            sum(state.num_seqs for state in states),
            sum(state.num_queued_seqs for state in states),
            sum(usage.held for usage in usages) / sum(usage.total for usage in usages),
            sum(total.swaps + total.recomputes for total in totals),
        )

    @property
    def lags(self) -> tuple[float, float]:
        return self.real_time.lag_s, self.real_time.max_lag_s

    async def prepare(self, request: Request) -> None:
        """Compute how beams of this width change: seconds of a thread, the first time."""
        if request.beam:
            async with self._preparing:
                await asyncio.to_thread(self._beams.prepare, request.num_seqs)

    def _hand_over(self, served: Served) -> None:
        self.real_time.call(partial(self._arrive, served), served.received_s)

    def _arrive(self, served: Served) -> None:
        served.arrive(self._clock.now_ps)
        if self.door.submit(served.request):
            served.accept()

    def _withdraw(self, request_id: int) -> None:
        self.real_time.call(partial(self.door.cancel, request_id))

    def on_finished(self, request_id: int, time_ps: int) -> None:
        self._behind_first_tokens(partial(self._finished, request_id))

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        self._behind_first_tokens(partial(self._rejected, request_id, reason))

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        self._behind_first_tokens(partial(self._cancelled, request_id))

    def token_of(self, request_id: int, time_ps: int) -> None:
        """Each sequence of the request has another token, which has no id."""
        if self.unfinished[request_id].num_steps:
            self._behind_first_tokens(partial(self._add_token, request_id, time_ps))
        else:
            self._flush_after(ALONE_S / self.speed)
            self._add_token(request_id, time_ps)

    def _add_token(self, request_id: int, time_ps: int) -> None:
        served = self.unfinished[request_id]
        self._stepped(served, time_ps, [(None,) * served.request.num_seqs])

    def _behind_first_tokens(self, call: Callable[[], None]) -> None:
        """Call it when the loop has sent the first tokens of this moment, whose clients wait
        longest. Events sent in this way keep their order.
        """
        self._flush_after(0.0)
        self._pending.append(call)

    def _flush_after(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._flush)

    def _flush(self) -> None:
        self._timer = None
        pending, self._pending = self._pending, []
        for call in pending:
            call()

    def _engine(self, setup: Setup) -> Engine:
        return simulated_engine(self._clock, setup.parts, Recorder(), setup.mode)

    def _fleet(self, setup: Setup, fleet: FleetSetup) -> Fleet:
        return make_fleet(
            self._clock,
            fresh_parts(fleet),
            [Recorder() for _ in fleet.parts],
            fleet.rules,
            setup.mode,
        )

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the simulation has ended", "exception": task.exception()}
            )
        self._failed()


class Tokens(TokenListener):
    """Follows the tokens of one engine; the ends of requests come from the door."""

    def __init__(self, live: LiveSimulation) -> None:
        self._live = live

    def on_tokens(self, request_id: int, count: int, time_ps: int) -> None:
        for _ in range(count):
            self._live.token_of(request_id, time_ps)


def check_no_faults(setup: Setup) -> None:
    """Refuse engines that fail, whose clients have tokens already."""
    if setup.fleet is not None and setup.fleet.rules.faults:
        raise InputError(
            key="faults",
            problem="a request would begin anew behind its client",
            remedy="leave faults out",
        )
