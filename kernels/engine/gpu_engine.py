"""Carries an engine's plans out on a device, in real time; its records."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from testbed.core.garbage import left_alone
from testbed.core.request import PS, Request
from testbed.core.sequence import SequenceGroup
from testbed.cost.model import UNBOUNDED, Affine
from testbed.engine.clients import OpenLoop
from testbed.engine.engine import Engine
from testbed.engine.executor import Executor, Flight, Waiting
from testbed.engine.mode import Mode
from testbed.engine.outputs import Outputs
from testbed.engine.wall_clock import WallClock
from testbed.kernels.engine.records import Iteration, Records
from testbed.kernels.engine.runner import Launched, Runner
from testbed.sched.beam_search import Replacement, SyntheticBeams
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.scheduler import Scheduler

Parents = Mapping[int, tuple[Replacement, ...]]
UNKNOWN = Affine(first_ps=1, growth_ps=0, steps=1)  # durations are known when an iteration has run


class EndTokens:
    """The tokens that end a sequence of one request, and the sequences that have had one."""

    def __init__(self, token_ids: frozenset[int]) -> None:
        self._token_ids = token_ids
        self._ended: set[int] = set()

    def has_come(self, newest: list[int]) -> bool:
        """True if every sequence has had one, with these newest tokens."""
        self._ended.update(i for i, token in enumerate(newest) if token in self._token_ids)
        return len(self._ended) == len(newest)


class GpuExecutor(Executor):
    """Launches a plan's work, and samples its tokens when the GPU has done it.

    It carries out one iteration of a plan. A plan that was made while another runs is launched at
    once, behind it, so that the GPU need not wait for the host; without launches_ahead it is
    launched when the results of the other are in. The requests determine the ends of outputs;
    `end_tokens`, by request id, those that may end early. The model determines the beams that
    survive and the drafts that are accepted. while_computing, if set, is called once in each
    iteration, when its work is launched and its tokens are not there yet.
    """

    clock: WallClock

    def __init__(
        self, clock: WallClock, runner: Runner, outputs: Outputs, *, launches_ahead: bool = True
    ) -> None:
        super().__init__(clock)
        self.runner = runner
        self.outputs = outputs
        self.launches_ahead = launches_ahead and not runner.slot_checker.follows_tokens
        self.records = Records(beams=runner.sampler.history)
        self.end_tokens: dict[int, EndTokens] = {}
        self.while_computing: Callable[[], None] | None = None
        self._launched: dict[Flight, Launched] = {}
        self._num_in_flight = 0
        self._before: Flight | None = None  # the last one that has ended
        self._free_ps = 0  # when the host could begin to launch it
        clock.poll = self._poll
        clock.is_polled = lambda: bool(runner.moves.pending)

    def take_landed(self) -> list[int]:
        return self.runner.take_landed()

    @property
    def has_landed(self) -> bool:
        return bool(self.runner.moves.ended())

    @property
    def has_transfers(self) -> bool:
        return bool(self.runner.moves.pending)

    def start(self, plan: Plan) -> Flight:
        flight = Flight(plan)
        if self.launches_ahead or not self._num_in_flight:
            self._launch(flight)
        self._num_in_flight += 1
        return flight

    def begin(self, flight: Flight, max_steps: int, end_by_ps: int, plan_by_ps: int) -> None:
        flight.durations = UNKNOWN
        if flight not in self._launched:
            self._launch(flight)

    def _launch(self, flight: Flight) -> None:
        self._launched[flight] = self.runner.launch(flight.plan)
        flight.launched_ps = self.clock.now_ps

    def drop(self, flight: Flight) -> None:
        """See Executor; if it was launched already, its results are not read."""
        self._launched.pop(flight, None)
        self._num_in_flight -= 1

    def wait_for_last(self, flight: Flight) -> Generator[Any, None, None]:
        """The only iteration is the last."""
        yield from ()

    def wait(self, flight: Flight) -> Waiting:
        launched = self._launched[flight]
        if self.while_computing is not None:
            self.while_computing()
        self.runner.wait(launched)
        flight.end_ps = flight.computed_ps = self.clock.now_ps  # so far
        parents = self.runner.sample(launched)
        self._num_in_flight -= 1
        yield from ()
        if flight.outcome is None:
            return self._results(flight.plan, launched, parents)
        return Results(flight.ended, parents)

    def _results(self, plan: Plan, launched: Launched, parents: Parents) -> Results:
        """The results of a plan that was not anticipated."""
        accepted = self.outputs.accepted(plan)
        groups = {owner.group.request_id: owner.group for owner in launched.wanted.owners}
        if self.end_tokens:
            self._end_at_tokens(groups, accepted)
        ended = self.outputs.ended(plan, 1, accepted)
        return Results(ended, parents, accepted, self.runner.drafter.found(groups.values()))

    def committed(self, flight: Flight, outcome: Outcome, results: Results) -> int:
        self.runner.follow(outcome, results)
        self.clock.iteration_ended()
        end_ps = flight.end_ps = self.clock.now_ps
        for group in outcome.finished:
            self._keep_outputs(group)
        duration_ps = end_ps - flight.start_ps
        if flight.outcome is None:
            flight.durations = Affine(duration_ps, growth_ps=0, steps=1)
        duration_s, waited_s = duration_ps / PS, self.runner.timer.take_waited()
        times = flight.start_ps / PS, duration_s, duration_s - waited_s, waited_s
        gpu_s = self._launched.pop(flight).time.seconds
        launch_s = self._launching_ps(flight) / PS
        self.records.iterations.append(Iteration(*times, gpu_s, flight.work, launch_s))
        return end_ps

    def _launching_ps(self, flight: Flight) -> int:
        """The time in which the host has launched an iteration: since the results of the one before
        were there, which it reads first, or since it was awake; if it launched ahead, since that of
        the one before and since that was launched.
        """
        before, free_before_ps = self._before, self._free_ps
        self._free_ps = flight.start_ps
        if before is not None and before.end_ps == flight.start_ps:
            self._free_ps = before.computed_ps
        begun_ps = self._free_ps
        if before is not None and flight.launched_ps < flight.start_ps:
            begun_ps = max(free_before_ps, before.launched_ps)
        self._before = flight
        return flight.launched_ps - begun_ps

    def _end_at_tokens(self, groups: Mapping[int, SequenceGroup], accepted: dict[int, int]) -> None:
        """End the requests whose every sequence has a token that ends it; drafts behind that are
        not accepted.
        """
        buffers = self.runner.token_buffers.tokens
        for request_id in groups.keys() & self.end_tokens.keys():
            group, end = groups[request_id], self.end_tokens[request_id]
            stop = group.prefill_len + 1 + accepted.get(request_id, 0)
            new = [buffers[seq.seq_id][group.prefill_len : stop] for seq in group.sequences]
            for num_tokens, newest in enumerate(zip(*new, strict=False), 1):
                if end.has_come(list(newest)):
                    self.outputs.end_with_next(group, num_tokens)
                    if request_id in accepted:
                        accepted[request_id] = num_tokens - 1
                    break

    def outputs_of(self, group: SequenceGroup, first: int = 0) -> list[list[int]]:
        """The output tokens from number `first` of each sequence of a group that has not ended."""
        tokens, start = self.runner.token_buffers.tokens, group.request.prompt_len + first
        return [tokens[seq.seq_id][start:] for seq in group.sequences]

    def _keep_outputs(self, group: SequenceGroup) -> None:
        request_id = group.request_id
        self.records.outputs[request_id] = [
            tokens[: group.num_generated] for tokens in self.outputs_of(group)
        ]
        if group.request.beam:
            self.records.scores[request_id] = self.runner.sampler.totals(request_id)
        self.end_tokens.pop(request_id, None)
        self.runner.sampler.end(group)

    def drop_transfers(self) -> None:
        """See Executor; no fault is planned for an engine on a GPU."""

    def cut(self, flight: Flight, at_ps: int) -> None:
        """See Executor; there is one iteration."""

    def move(self, plan: Plan) -> None:
        self.runner.prepare(plan)
        self.runner.moves.flush()

    def added(self, group: SequenceGroup) -> None:
        self.runner.token_buffers.start(group)

    def removed(self, group: SequenceGroup) -> None:
        self.end_tokens.pop(group.request_id, None)
        self.runner.forget(group)

    def _poll(self) -> None:
        if self.has_landed and self.on_landed is not None:
            self.on_landed()


class GpuEngine:
    """The engine over a device: serves requests by the plans of a scheduler.

    window_s are two times: batch and memory are averaged between them, and no plan begins after the
    second. launches_ahead: see GpuExecutor. close: ends what the engine has begun on other devices,
    and raises if that has failed; `with engine:` calls it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: WallClock,
        max_len: int,
        window_s: tuple[float, float] | None = None,
        lengths: dict[int, int] | None = None,
        *,
        launches_ahead: bool = True,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        outputs = Outputs(  # not for parents: the model has them, as it has what is accepted
            scheduler.state, SyntheticBeams(), lengths, runner.verified
        )
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.max_len = max_len
        self.close = close
        self.executor = GpuExecutor(clock, runner, outputs, launches_ahead=launches_ahead)
        self.records = self.executor.records
        window_ps = tuple(round(at_s * PS) for at_s in window_s or ())
        mode = Mode(snapshots_ps=window_ps, stop_ps=window_ps[1] if window_ps else UNBOUNDED)
        recorder = self.records.recorder
        self.engine = Engine(scheduler, self.executor, outputs, recorder, max_len, mode)

    def __enter__(self) -> "GpuEngine":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the engine; what has gone wrong before is what is raised."""
        with suppress(Exception) if error is not None else nullcontext():
            self.close()

    def serve(self, requests: Iterable[Request]) -> Records:
        """Serve requests, in order of arrival, until all have ended or the window is over."""
        requests = [request for request in requests if request.arrival_ps < self.engine.stop_ps]
        with self.serving(requests):
            OpenLoop(self.clock, self.engine, requests).start()
            self.run()
        self.records.swaps = self.runner.moves.swap_times()
        return self.records

    @contextmanager
    def serving(self, requests: Iterable[Request]) -> Iterator[None]:
        """Time begins at 0, when the prompts of the requests that will come are made."""
        self.runner.token_buffers.prepare(request.incoming for request in requests)
        with left_alone():
            self.clock.restart()
            yield

    def run(self) -> None:
        """Serve what is submitted, until the engine is closed and nothing is left."""
        self.clock.run(self.engine.serve())
