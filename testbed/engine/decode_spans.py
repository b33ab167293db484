"""The fused path of a span of decode iterations: what `Engine` does for any plan by `start`,
`_begin`, `wait` and `_commit`, in two calls for the plans that need the least of it.

It is for iterations that only decode, share no slots, and whose time the cost model alone knows.
Whatever it does must equal the plain path, in every row of the recorder
(tests/property/test_fused_spans.py).
"""

from testbed.core.slots import record
from testbed.cost.model import UNBOUNDED, CostModel, Work, are_durations, wrong_durations
from testbed.engine import audit
from testbed.engine.departures import Departures
from testbed.engine.executor import Flight
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sampled_checks import ExponentialSampling, SampledChecks
from testbed.engine.snapshot_times import SnapshotTimes
from testbed.engine.span_meter import SpanMeter
from testbed.sched.plan import Plan, windows_of
from testbed.sched.scheduler import Scheduler


class DecodeSpans:
    """Begins and ends the spans of one engine. All have one `Flight`, for at most one is under way.

    windows: the sizes of the model's sliding windows, in tokens.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel,
        outputs: Outputs,
        meter: SpanMeter,
        recorder: Recorder,
        departures: Departures,
        snapshots: SnapshotTimes,
        checks: SampledChecks,
        windows: tuple[int, ...],
    ) -> None:
        self._scheduler = scheduler
        self._state = scheduler.state
        self._cost = cost
        self._outputs = outputs
        self._meter = meter
        self._recorder = recorder
        self._departures = departures
        self._snapshots = snapshots
        self._checks = checks
        self._windows = windows
        self._costs_checked = ExponentialSampling()
        self._flight = Flight(Plan())
        self._flight.repeats = True

    def begin(self, plan: Plan, start_ps: int, arrival_ps: int) -> Flight | None:
        """The plan's first iteration begins, and the plan after it is made at the first boundary at
        or after arrival_ps; None where the plan needs the plain path.
        """
        state, usage = self._state, self._state.policy.usage()
        if (
            usage.saved
            or not plan.repeats
            or plan.preempted
            or len(state.batch.sequences) != state.num_seqs
            or self._meter.forked
            or state.beams
        ):
            return None
        flight = self._flight
        flight.plan, flight.usage, flight.start_ps = plan, usage, start_ps
        flight.num_waiting, flight.num_swapped = len(state.waiting), len(state.swapped)
        flight.work = work = self._work(plan)
        flight.durations = durations = self._cost.decode(work)
        if not are_durations(durations):
            raise wrong_durations(self._cost, durations)
        if self._costs_checked.is_due():
            audit.check_decode(self._cost, work, durations)
        flight.steps = steps = self._steps(plan, flight, arrival_ps)
        first_ps, growth_ps, _ = durations
        flight.end_ps = start_ps + steps * first_ps + growth_ps * (steps * (steps - 1) // 2)
        return flight

    def _work(self, plan: Plan) -> Work:
        """What the plan's first iteration reads."""
        state, windows = self._state, ()
        if self._windows:
            windows = windows_of(plan, state.batch, self._windows)
        decodes = plan.decode_seqs, plan.decode_context, plan.decode_max_context
        return record(Work, (*decodes, 0, (), len(state.running), (), (), (), 0, windows, 0))

    def _steps(self, plan: Plan, flight: Flight, arrival_ps: int) -> int:
        """How many iterations are carried out: up to the next end of an output, promise or mark."""
        promised, wake_ps, durations = plan.guaranteed_steps, plan.wake_ps, flight.durations
        if type(promised) is not int or promised < 0 or type(wake_ps) is not int:
            raise audit.wrong_promise(self._scheduler, plan)
        steps = min(1 + promised, self._outputs.steps_to_end(), durations.steps)
        by_ps = min(self._snapshots.next_ps, wake_ps, arrival_ps)
        if by_ps < UNBOUNDED and steps > 1:
            elapsed_ps = by_ps - flight.start_ps
            first_ps, growth_ps, _ = durations
            if elapsed_ps <= 0:
                return 1
            if steps * first_ps + growth_ps * (steps * (steps - 1) // 2) > elapsed_ps:
                return durations.steps_to_reach(elapsed_ps)
        return steps

    def end(self, flight: Flight) -> None:
        """The iterations have run: commit their results, and record them."""
        plan, steps, end_ps = flight.plan, flight.steps, flight.end_ps
        results = self._outputs.results(plan, steps)
        outcome = self._scheduler.commit(plan, steps, results)
        if steps > 1 and not outcome.finished:
            self._checks.growth(flight.usage, outcome.grown)
        memory = self._meter.close_decodes(flight, outcome)
        self._recorder.decoded(flight, memory, results.ended)
        for group in outcome.finished:
            self._departures.finish(group, end_ps)
