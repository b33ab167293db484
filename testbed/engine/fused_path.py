"""The fused path: what `Engine` does for any plan by `start`, `_begin`, `wait` and `_commit`, in
two calls for the plans that need the least of it.

These compute prompts and decodes of single sequences, move and copy nothing, and the cost model
alone says how long they take. All else, and all of this where an engine has no fused path, takes
the plain path; both give the same, in every row of the recorder
(tests/property/test_fused_path.py).
"""

from testbed.core.slots import Usage, record
from testbed.cost.model import (
    UNBOUNDED,
    Affine,
    CostModel,
    WindowReads,
    Work,
    are_durations,
    wrong_durations,
)
from testbed.engine import audit
from testbed.engine.departures import Departures
from testbed.engine.executor import Flight
from testbed.engine.host_launches import launched_counts
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sampled_checks import SampledChecks
from testbed.engine.snapshot_times import SnapshotTimes
from testbed.engine.span_meter import SpanMeter
from testbed.sched.plan import Plan, windows_of
from testbed.sched.scheduler import Scheduler


class FusedPath:
    """Begins and ends the plans of one engine. All have one `Flight`, for one is under way at most.

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
        self._launches = cost.launches
        self._outputs = outputs
        self._meter = meter
        self._recorder = recorder
        self._departures = departures
        self._snapshots = snapshots
        self._checks = checks
        self._windows = windows
        self._num_spans = 0
        self._is_checked = False  # this span is one of those whose cost and growth are checked
        self._flight = Flight(Plan())

    def begin(self, plan: Plan, start_ps: int, arrival_ps: int) -> Flight | None:
        """The plan's first iteration begins, and the plan after it is made at the first boundary at
        or after arrival_ps; None where the plan needs the plain path.
        """
        state, usage = self._state, self._state.policy.usage()
        repeats = plan.guaranteed_steps and not plan.chunks
        if (  # it moves or forks something, or a request has several sequences
            (plan.ops or plan.swapped_in or plan.forks or plan.preempted or plan.drafts)
            or (state.beams or self._meter.forked or len(state.running) != state.num_seqs)
            or (usage.saved and repeats)
        ):
            return None
        if self._launches and self._cost.launch(*launched_counts(self._cost, plan)) is not None:
            return None
        flight = self._flight
        flight.plan, flight.usage, flight.start_ps = plan, usage, start_ps
        flight.num_waiting, flight.num_swapped = len(state.waiting), len(state.swapped)
        if state.loading:
            flight.num_waiting += len(state.loading)
        flight.repeats = bool(repeats)
        self._meter.growing = len(state.batch.sequences)
        if plan.chunks:
            self._checks.tables(usage)
            self._meter.begin_chunks(plan)
        flight.work = self._work(plan, usage)
        if repeats:
            self._set_steps(flight, arrival_ps)
        else:
            flight.steps, flight.durations = 1, self._single(flight.work)
            flight.end_ps = start_ps + flight.durations.first_ps
        return flight

    def _work(self, plan: Plan, usage: Usage) -> Work:
        """What the plan's first iteration computes and reads."""
        state, repeated = self._state, 0
        prefill: tuple[tuple[int, int], ...] = ()
        windows: tuple[WindowReads, ...] = ()
        if plan.chunks:
            prefill = tuple([(new + more, old) for _, _, new, old, _, more in plan.chunks])
        if usage.saved:
            repeated = self._meter.repeated_reads(plan, usage)
        if self._windows and plan.decode_seqs:
            windows = windows_of(plan, state.batch, self._windows)
        decodes = plan.decode_seqs, plan.decode_context, plan.decode_max_context
        requests = len(state.running)
        return record(Work, (*decodes, repeated, prefill, requests, (), (), (), 0, windows, 0))

    def _single(self, work: Work) -> Affine:
        """The duration of one iteration."""
        durations: Affine = record(Affine, (self._cost.iteration(work), 0, 1))
        if not are_durations(durations):
            raise wrong_durations(self._cost, durations)
        return durations

    def _set_steps(self, flight: Flight, arrival_ps: int) -> None:
        """How many iterations are carried out: up to the next end of an output, promise or mark."""
        plan, durations = flight.plan, self._cost.decode(flight.work)
        promised, wake_ps = plan.guaranteed_steps, plan.wake_ps
        if type(promised) is not int or promised < 0 or type(wake_ps) is not int:
            raise audit.wrong_promise(self._scheduler, plan)
        if not are_durations(durations):
            raise wrong_durations(self._cost, durations)
        self._num_spans += 1
        self._is_checked = not self._num_spans & (self._num_spans - 1)  # 1, 2, 4, 8, ...
        if self._is_checked:
            audit.check_decode(self._cost, flight.work, durations)
        first_ps, growth_ps, most = durations
        steps = min(1 + promised, self._outputs.steps_to_end(), most)
        duration_ps = steps * first_ps + growth_ps * (steps * (steps - 1) // 2)
        by_ps = min(self._snapshots.next_ps, wake_ps, arrival_ps)
        elapsed_ps = by_ps - flight.start_ps
        if by_ps < UNBOUNDED and steps > 1 and duration_ps > elapsed_ps:
            steps = durations.steps_to_reach(elapsed_ps) if elapsed_ps > 0 else 1
            duration_ps = steps * first_ps + growth_ps * (steps * (steps - 1) // 2)
        flight.steps, flight.durations = steps, durations
        flight.end_ps = flight.start_ps + duration_ps

    def end(self, flight: Flight) -> None:
        """The iterations have run: commit their results, and record them."""
        plan, steps, start_ps, end_ps = flight.plan, flight.steps, flight.start_ps, flight.end_ps
        outputs, recorder, duration_ps = self._outputs, self._recorder, end_ps - start_ps
        results = outputs.results(plan, 1) if plan.chunks else outputs.decoded(steps)
        outcome = self._scheduler.commit(plan, steps, results)
        if steps > 1 and self._is_checked and not outcome.finished:
            audit.check_growth(self._state.policy, flight.usage, outcome.grown)
        if plan.chunks:
            outputs.follow(plan, outcome)
            memory = self._meter.close_plain(flight, outcome)
            queued = flight.num_waiting, flight.num_swapped
            recorder.span(start_ps, duration_ps, 1, plan, *queued, memory)
            recorder.tokens(plan, 1, (), outcome.first_tokens, results, end_ps)
        else:
            recorder.decoded(flight, self._meter.close_plain(flight, outcome), results.ended)
        for group in outcome.finished:
            self._departures.finish(group, end_ps)
