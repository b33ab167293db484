"""The bridge between asyncio and an engine: requests that come and go while simulated time passes
as fast as real time.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import count

from testbed.build import Setup
from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.engine.listeners import TokenListener
from testbed.engine.real_time import RealTimeClock
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulated_engine
from testbed.serving.errors import ApiError
from testbed.serving.metrics import Metrics
from testbed.serving.request_log import RequestLog


@dataclass(eq=False, slots=True)
class Served:
    """A prompt on its way through the engine. events receives it at each token and at its end.

    place: the prompt's number within its HTTP request. delivered: output tokens that the client
    side has taken from `events`.
    """

    request_id: int
    place: int
    prompt_ids: tuple[int, ...]
    output_len: int
    num_seqs: int
    beam: bool
    priority: int
    events: "asyncio.Queue[Served]"
    arrived: "asyncio.Future[None]"
    arrival_ps: int = 0
    first_ps: int = 0
    last_ps: int = 0
    num_tokens: int = 0
    delivered: int = 0
    is_ended: bool = False
    failure: ApiError | None = None
    request: Request = field(init=False)

    def arrive(self, now_ps: int) -> Request:
        """The request, which arrives now."""
        self.arrival_ps = now_ps
        self.request = Request(
            self.request_id,
            now_ps,
            len(self.prompt_ids),
            self.output_len,
            self.num_seqs,
            self.beam,
            0,
            self.prompt_ids,
            priority=self.priority,
        )
        return self.request

    def fail(self, error: ApiError) -> None:
        """End without an answer."""
        self.failure, self.is_ended = error, True
        if not self.arrived.done():
            self.arrived.set_result(None)
        self.events.put_nowait(self)


class LiveSimulation(TokenListener):
    """One engine, whose simulated time passes `speed` times as fast as real time from `start` on.

    All methods belong to the thread of the asyncio loop.
    """

    def __init__(
        self, setup: Setup, metrics: Metrics, speed: float = 1.0, log: RequestLog | None = None
    ) -> None:
        check_served(setup)
        self.setup = setup
        self.log = log
        self.metrics = metrics
        self.unfinished: dict[int, Served] = {}
        self.num_cancelled = 0
        self._speed = speed
        self._request_ids = count()
        clock = SimClock()
        self.engine = simulated_engine(
            clock,
            setup.scheduler,
            setup.cost,
            setup.model.max_len,
            Recorder(),
            beams=setup.beams,
            lengths=setup.lengths,
            pool=None if setup.config.policy.is_instance else setup.pool,
            fast_forward=setup.config.fast_forward,
        )
        self.engine.listen_to_tokens(self)
        self._clock = clock
        self.real_time = RealTimeClock(clock, speed)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Let time pass from now on."""
        self._clock.start(self.engine.serve())
        self.real_time = RealTimeClock(self._clock, self._speed)
        self._task = asyncio.create_task(self.real_time.run())
        self._task.add_done_callback(self._run_ended)

    @property
    def is_alive(self) -> bool:
        """Whether time passes."""
        return self._task is not None and not self._task.done()

    def next_id(self) -> int:
        """The number of the next request."""
        return next(self._request_ids)

    async def submit(self, served: Served) -> None:
        """Let the request arrive now. Raises ApiError where it can never run."""
        if not self.is_alive:
            raise ApiError(503, "the simulation: has ended (see the server's output)")
        self.unfinished[served.request_id] = served
        self.real_time.call(lambda: self._arrive(served))
        await served.arrived
        if served.failure is not None:
            raise served.failure

    def cancel(self, served: Served) -> None:
        """The client has gone: free what the request holds."""
        if not served.is_ended and self.is_alive:
            self.real_time.call(lambda: self.engine.cancel(served.request_id))

    async def stop(self) -> None:
        """Cancel what is left, and let no more time pass."""
        for served in list(self.unfinished.values()):
            self.cancel(served)
        while self.unfinished and self.is_alive:
            await asyncio.sleep(0.005)
        self.real_time.close()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.log is not None:
            self.log.close()

    def _arrive(self, served: Served) -> None:
        if self.engine.submit(served.arrive(self._clock.now_ps)) and not served.arrived.done():
            served.arrived.set_result(None)

    def on_tokens(self, request_id: int, count: int, time_ps: int) -> None:
        served = self.unfinished[request_id]
        if served.num_tokens == 0:
            served.first_ps = time_ps
            self.metrics.first_token((time_ps - served.arrival_ps) / PS)
        else:
            self.metrics.later_token((time_ps - served.last_ps) / PS / count)
        self.metrics.tokens(count * served.num_seqs)
        served.last_ps = time_ps
        for _ in range(count):
            served.num_tokens += 1
            served.events.put_nowait(served)

    def on_finished(self, request_id: int, time_ps: int) -> None:
        served = self.unfinished.pop(request_id)
        served.is_ended = True
        served.events.put_nowait(served)
        self.metrics.finished(len(served.prompt_ids), (time_ps - served.arrival_ps) / PS)
        if self.log is not None:
            times = served.arrival_ps, served.first_ps, time_ps
            self.log.write(len(served.prompt_ids), served.output_len, *times)

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        error = ApiError(400, f"the request: {reason}", code="context_length_exceeded")
        self.unfinished.pop(request_id).fail(error)

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        self.num_cancelled += 1
        self.unfinished.pop(request_id).fail(ApiError(503, "the request: was cancelled"))

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        """Nothing hears from the engine any more: nobody may wait for it."""
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the simulation has ended", "exception": task.exception()}
            )
        for served in self.unfinished.values():
            served.fail(ApiError(500, "the simulation: has ended (see the server's output)"))
        self.unfinished.clear()


def check_served(setup: Setup) -> None:
    """Refuse a run whose parts read a workload that a server does not know in advance."""
    if setup.config.engine is not None:
        raise InputError("engine: serve stands over the simulator only (leave engine out)")
    if setup.config.replicas is not None:
        raise InputError("replicas: serve runs one engine (leave replicas, router and faults out)")
    for name in ("window_s", "stop_at_latency"):
        if getattr(setup.config, name) is not None:
            raise InputError(f"{name}: ends a run, and a server does not end (leave it out)")
    if setup.scheduler.memory.foresees_prompts is not None:
        raise InputError(
            f"policy: {setup.scheduler.memory.name} reads the prompts to come, which a server does "
            "not know (choose another eviction)"
        )
    if setup.workload.rows.registered_prefix:
        raise InputError("trace: has a registered prefix, and clients send none (choose another)")
