"""Carries plans out in simulated time, by a cost model and the links between tiers."""

from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from testbed.core.slots import Transfer, record
from testbed.cost.model import (
    UNBOUNDED,
    Affine,
    CostModel,
    Launch,
    are_durations,
    wrong_durations,
)
from testbed.engine import audit
from testbed.engine.clock import Clock
from testbed.engine.executor import Executor, Flight, Waiting
from testbed.engine.host_launches import HostLaunches, computed_ps, launched_counts
from testbed.engine.links import NO_LINKS, Links, SharedLink
from testbed.engine.outputs import Outputs
from testbed.engine.sampled_checks import ExponentialSampling
from testbed.memory.policy import PoolSpec
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.scheduler import Scheduler


class SimulatedExecutor(Executor):
    """Computes how long iterations take, and lets that time pass.

    It carries out many identical decode iterations at once, a span, until something could change
    the next plan. `cut` ends a span that is under way. pool: what the policy was given, if its
    moves are to be checked against it. links: of the tiers that other engines use too, by name.
    """

    follows_groups: ClassVar[bool] = False

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        cost: CostModel,
        outputs: Outputs,
        pool: PoolSpec | None = None,
        links: Mapping[str, SharedLink] = NO_LINKS,
    ) -> None:
        super().__init__(clock)
        self.cost = cost
        self.windows = cost.windows
        self._launches = cost.launches
        if not scheduler.plans_ahead:
            self.decode_cost = cost
        self.outputs = outputs
        self.links = Links(clock, cost, self._landed, links)
        self._policy = scheduler.policy
        self._lead = int(scheduler.plans_ahead)  # iterations under way when the next plan is made
        self._pool = pool
        self._decode_checks = ExponentialSampling()
        self._host = HostLaunches()
        self._current: Flight | None = None  # what has begun last

    def start(self, plan: Plan) -> Flight:
        flight = Flight(plan)
        if self._launches:
            decode_seqs, num_prompts, prompt_tokens = launched_counts(self.cost, plan)
            launch = self.cost.launch(decode_seqs, num_prompts, prompt_tokens)
            if launch is not None:
                audit.check_launch(self.cost, launch)
                if num_prompts and self.cost.slowness is not None:
                    launch = self.cost.slowness.slowed(launch, self.clock.now_ps)
                self._launch(flight, launch, decode_seqs + prompt_tokens)
        return flight

    def _launch(self, flight: Flight, launch: Launch, num_tokens: int) -> None:
        """The host reads results between launches: those of prompts under way wait for this one."""
        flight.launch = launch
        flight.launched_ps = self._host.launch(launch, self.clock.now_ps, num_tokens)
        before = self._current
        if before is not None and before.plan.chunks:
            before.end_ps = max(before.end_ps, flight.launched_ps)

    def begin(self, flight: Flight, max_steps: int, end_by_ps: int, plan_by_ps: int) -> None:
        computing = self._computing(flight)
        flight.durations = computing
        if flight.launch is not None:
            flight.durations = self._behind_launch(flight, flight.launch, computing)
        if flight.repeats:
            if self._decode_checks.is_due():
                audit.check_decode(self.cost, flight.work, computing)
            self._set_steps(flight, max_steps, end_by_ps, plan_by_ps)
        flight.end_ps = flight.computed_ps = self._boundary_ps(flight, flight.steps)
        self._current = flight
        if flight.plan.ops:
            flight.late = self._begin_transfers(flight.plan)

    def _computing(self, flight: Flight) -> Affine:
        """The cost model's times of its iterations."""
        cost, work = self.cost, flight.work
        durations: Any
        if flight.repeats:
            durations = cost.decode(work)
        else:
            durations = record(Affine, (cost.iteration(work), 0, 1))
        if not are_durations(durations):
            raise wrong_durations(cost, durations)
        checked: Affine = durations
        return checked

    def _behind_launch(self, flight: Flight, launch: Launch, computing: Affine) -> Affine:
        """The durations of iterations that wait for their launch. Iterations behind one that waits
        are launched while that one computes, if they are planned ahead.
        """
        if flight.repeats and self._lead:
            audit.check_hidden(self.cost, launch, computing)
        free_ps = 0 if self._current is None else self._current.computed_ps
        end_ps = computed_ps(launch, flight.launched_ps, free_ps, computing.first_ps)
        first_ps = max(end_ps - flight.start_ps, 1)
        if first_ps == computing.first_ps:
            return computing
        if self._lead:
            return record(Affine, (first_ps, 0, 1))
        return record(Affine, (first_ps, computing.growth_ps, computing.steps))

    def drop(self, flight: Flight) -> None:
        """See Executor; no time has passed for it."""

    def _set_steps(self, flight: Flight, max_steps: int, end_by_ps: int, plan_by_ps: int) -> None:
        durations, start_ps = flight.durations, flight.start_ps
        steps = min(max_steps, durations.steps)
        if end_by_ps < UNBOUNDED and steps > 1:
            steps = min(steps, durations.steps_to_reach(end_by_ps - start_ps))
        if plan_by_ps < UNBOUNDED and steps > 1:
            steps = min(steps, self._steps_before_plan(flight, plan_by_ps))
        flight.steps = steps

    def _steps_before_plan(self, flight: Flight, plan_by_ps: int) -> int:
        """The iterations of a span after which, or in the last of which, the next plan is made at
        the first boundary at or after plan_by_ps.
        """
        elapsed_ps = plan_by_ps - flight.start_ps
        ended = flight.durations.steps_to_reach(elapsed_ps) if elapsed_ps > 0 else 0
        return max(ended + self._lead, 1)

    def cut(self, flight: Flight, at_ps: int) -> None:
        if flight.is_last or flight.steps == 1:
            return
        if self.alarm.has_rung():
            at_ps += 1
        steps = self._steps_before_plan(flight, at_ps)
        if steps < flight.steps:
            flight.steps = steps
            flight.end_ps = flight.computed_ps = self._boundary_ps(flight, steps)
            self.alarm.bring_forward(self._boundary_ps(flight, steps - self._lead))

    def _boundary_ps(self, flight: Flight, steps: int) -> int:
        """The time at which the first `steps` iterations have run."""
        if steps == 1:
            return flight.start_ps + flight.durations.first_ps
        return flight.start_ps + flight.durations.total_ps(steps)

    def wait_for_last(self, flight: Flight) -> Generator[Any, None, None]:
        if self.on_step is not None:
            yield from self._steps(flight)
        elif flight.steps > 1:
            yield self.alarm.set(self._boundary_ps(flight, flight.steps - 1))
        if self._host.launched_ps > self.clock.now_ps:
            yield self.alarm.set(self._host.launched_ps)

    def wait(self, flight: Flight) -> Waiting:
        if self.on_step is not None:
            yield from self._steps(flight)
        yield self.alarm.set(flight.end_ps)  # a cut brings both forward
        if flight.late:
            self.links.begin(flight.late)
        if flight.outcome is not None:
            return Results(flight.ended, {}, flight.accepted)
        return self.outputs.results(flight.plan, flight.steps)

    def _steps(self, flight: Flight) -> Generator[Any, None, None]:
        """Wake at the end of each iteration but the last, whose results are committed."""
        assert self.on_step is not None
        while flight.num_delivered < flight.steps - 1:
            yield self.alarm.set(self._boundary_ps(flight, flight.num_delivered + 1))
            if flight.num_delivered < flight.steps - 1:  # else the span was cut to end here
                flight.num_delivered += 1
                self.on_step(flight)

    def committed(self, flight: Flight, outcome: Outcome, results: Results) -> int:
        return flight.end_ps

    def move(self, plan: Plan) -> None:
        self.links.begin(self._begin_transfers(plan))

    def _begin_transfers(self, plan: Plan) -> tuple[Transfer, ...]:
        """Begin the transfers in the background; returns those that wait for the moves of this
        iteration.
        """
        if self._pool:
            audit.check_moves(self._policy, plan.ops, self._pool)
        transfers = tuple([transfer for ops in plan.ops for transfer in ops.background])
        if not transfers or any(ops.moves or ops.copies for ops in plan.ops):
            return transfers
        self.links.begin(transfers)
        return ()

    def drop_transfers(self) -> None:
        """See Executor; it takes nothing of the links any more."""
        self.links.drop()

    def take_landed(self) -> list[int]:
        return self.links.take_landed() if self.links.landed else []

    @property
    def has_transfers(self) -> bool:
        return self.links.num_pending > 0

    @property
    def has_landed(self) -> bool:
        return bool(self.links.landed)

    def _landed(self) -> None:
        if self.on_landed is not None:
            self.on_landed()
