"""The fused path of sequences that step one by one, with drafts or in order of rank: what `Engine`
does by `start`, `_begin`, `wait` and `_commit`, in two calls.

Such a plan is one iteration, since its sequences grow by different numbers. If it moves nothing and
its host launches nothing apart, only the cost model says how long it takes, and no event on the
clock is needed. Both paths give the same (tests/property/test_drafts.py).
"""

from collections.abc import Callable

from testbed.core.slots import Usage
from testbed.cost.model import CostModel, Work
from testbed.engine.departures import Departures
from testbed.engine.draft_meter import DraftMeter
from testbed.engine.executor import Flight
from testbed.engine.fused_path import is_launched, set_one_step
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sampled_checks import SampledChecks
from testbed.sched.plan import Plan
from testbed.sched.scheduler import Scheduler


class DraftPath:
    """Begins and ends the plans of one engine, of which one is under way at most. work_of: the work
    of a plan that finds the pool in this use.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel,
        outputs: Outputs,
        meter: DraftMeter,
        recorder: Recorder,
        departures: Departures,
        checks: SampledChecks,
        work_of: Callable[[Plan, Usage], Work],
    ) -> None:
        self._scheduler = scheduler
        self._cost = cost
        self._launches = cost.launches
        self._outputs = outputs
        self._meter = meter
        self._recorder = recorder
        self._departures = departures
        self._checks = checks
        self._work_of = work_of
        self._flight = Flight(Plan())

    def begin_next(self, start_ps: int, arrival_ps: int) -> Flight | None:
        """See FusedPath; no such plan is promised several steps."""
        return None

    def begin(self, plan: Plan, start_ps: int, arrival_ps: int) -> Flight | None:
        """The plan's iteration begins; None if the plan needs the plain path."""
        if (plan.swapped_in or plan.preempted or plan.ops) or (
            self._launches and is_launched(self._cost, plan)
        ):
            return None
        state, flight = self._scheduler.state, self._flight
        usage = state.policy.usage()
        if plan.chunks:
            self._checks.tables(usage)
        self._meter.open(plan, usage)
        flight.plan, flight.start_ps = plan, start_ps
        flight.num_waiting = len(state.waiting) + len(state.loading)
        flight.num_swapped = len(state.swapped)
        flight.work = self._work_of(plan, usage)
        set_one_step(self._cost, flight)
        return flight

    def end(self, flight: Flight) -> None:
        """The iteration has run: commit its results, and record it. No group is in a batch, whose
        end `outputs.follow` would note.
        """
        plan, start_ps, end_ps = flight.plan, flight.start_ps, flight.end_ps
        recorder, waiting, swapped = self._recorder, flight.num_waiting, flight.num_swapped
        results = self._outputs.results(plan, 1)
        outcome = self._scheduler.commit(plan, 1, results)
        duration_ps = end_ps - start_ps
        memory = self._meter.close(plan, flight.durations, 1, duration_ps, outcome)
        recorder.span(start_ps, duration_ps, 1, plan, waiting, swapped, memory)
        recorder.tokens(plan, 1, (), outcome.first_tokens, results, end_ps)
        for group in outcome.finished:
            self._departures.finish(group, end_ps)
