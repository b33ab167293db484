"""The fused path: what `Engine` does for any plan by `Scheduler.plan`, `start`, `_begin`, `wait`
and `_commit`, in two calls for the plans that need the least of it.

These compute prompts and decodes, move nothing between tiers, and the cost model alone says how
long they take. For several promised steps of the batch while no request is admitted, the scheduler
is not even asked (`begin_next`). All else, and all of this if an engine has no fused path, takes
the plain path; both give the same, in every row of the recorder
(tests/property/test_fused_path.py).
"""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import NO_OPS, Grant, record
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
from testbed.engine.outputs import NOTHING, Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sampled_checks import SampledChecks
from testbed.engine.snapshot_times import SnapshotTimes
from testbed.engine.span_meter import SpanMeter
from testbed.engine.totals import SpanAccount
from testbed.sched.plan import NOTHING as NO_COPIES
from testbed.sched.plan import Plan, broken_promise, summed, windows_of
from testbed.sched.scheduler import Scheduler


class FusedPath:
    """Begins and ends the plans of one engine, of which one is under way at most. Plans of
    `begin_next`, those with prompts while requests have several sequences, and all others have a
    `Flight` each.
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
    ) -> None:
        self._scheduler = scheduler
        self._state = scheduler.state
        self._policy = scheduler.policy
        self._cost = cost
        self._launches = cost.launches  # asked before `is_launched`, a call a span
        self._outputs = outputs
        self._meter = meter
        self._recorder = recorder
        self._departures = departures
        self._snapshots = snapshots
        self._checks = checks
        self._windows = cost.windows
        self._num_spans = 0
        self._is_checked = False  # this span is one of those whose cost and growth are checked
        self._flight = Flight(Plan())
        self._of_groups = Flight(Plan())  # some in prefill, some requests of several sequences
        self._steady = Flight(Plan())  # of `begin_next`
        self._flight.is_promised = False
        self._steady.repeats = self._steady.is_promised = True
        self._steady.num_swapped = 0
        self._is_steady = scheduler.is_steady and not cost.windows
        self._steps_to_change = 0  # from the beginning of a span, if it was asked
        assert scheduler.memory.predicts is not None, "a SpanMeter measures by footprints"
        self._predicts = scheduler.memory.predicts
        layered = scheduler.memory.layered
        self._advance = self._policy.extend if layered is None else layered.advance

    def begin_next(self, start_ps: int, arrival_ps: int) -> Flight | None:
        """Plan and begin at once, if the plan is several promised steps of the batch, which the
        policy takes in `end`; None if it is not.
        """
        if not (self._is_steady and self._scheduler.is_decoding):
            return None
        state = self._state
        num_seqs = state.num_seqs
        promised = 0 if state.stepwise else self._predicts.guaranteed_steps(state.batch)
        if type(promised) is not int or promised < 2:
            return None
        flight, batch = self._steady, state.batch
        plan = flight.plan
        plan.decode_seqs, plan.guaranteed_steps = num_seqs, promised - 1
        plan.ends_on_arrival = not state.waiting
        context, longest = batch.next_reads()
        plan.decode_context, plan.decode_max_context = context, longest
        if self._launches and is_launched(self._cost, plan):
            return None
        usage = self._policy.usage()
        flight.usage, flight.start_ps = usage, start_ps
        num_running = flight.num_running = len(state.running)
        flight.num_waiting, flight.growing = len(state.waiting), num_seqs
        repeated, flight.saved = 0, usage.saved
        if flight.saved:
            self._meter.begin_shared()
            repeated = self._meter.repeated_reads(plan, usage)
        flight.work = record(
            Work, (num_seqs, context, longest, repeated, (), num_running, (), (), (), 0, (), 0)
        )
        self._set_steps(flight, UNBOUNDED if state.waiting else arrival_ps)
        return flight

    def begin(self, plan: Plan, start_ps: int, arrival_ps: int) -> Flight | None:
        """The plan's first iteration begins, and the plan after it is made at the first boundary at
        or after arrival_ps; None if the plan needs the plain path.
        """
        state, usage, meter = self._state, self._policy.usage(), self._meter
        saved = usage.saved
        if (plan.swapped_in or plan.preempted or plan.drafts) or (
            self._launches and is_launched(self._cost, plan)
        ):
            return None
        if plan.ops:
            if [ops for ops in plan.ops if ops.moves or ops.background]:
                return None
            self._recorder.moved(plan)
        if plan.chunks:
            self._checks.tables(usage)
        flight, repeats = self._flight, bool(plan.guaranteed_steps) and plan.repeats
        outside = plan.chunks or len(state.batch.sequences) != state.num_seqs
        if outside and (meter.forked or len(state.running) != state.num_seqs):
            flight = self._of_groups
            meter.open(plan, usage)
        elif plan.chunks:
            meter.begin_chunks(plan)
        elif repeats and saved:
            meter.begin_shared()
        flight.plan, flight.usage, flight.start_ps = plan, usage, start_ps
        flight.saved, flight.num_running = saved, len(state.running)
        flight.num_waiting, flight.num_swapped = len(state.waiting), len(state.swapped)
        if state.loading:
            flight.num_waiting += len(state.loading)
        flight.repeats = repeats
        flight.growing = len(state.batch.sequences)
        flight.work = self._work(flight)
        if repeats:
            promised, wake_ps = plan.guaranteed_steps, plan.wake_ps
            if type(promised) is not int or promised < 0 or type(wake_ps) is not int:
                raise audit.wrong_promise(self._scheduler, plan)
            self._set_steps(flight, min(arrival_ps, wake_ps))
        else:
            set_one_step(self._cost, flight)
        return flight

    def _work(self, flight: Flight) -> Work:
        """The work of the plan's first iteration: what it computes and reads."""
        state, plan, repeated = self._state, flight.plan, 0
        prefill: tuple[tuple[int, int], ...] = ()
        windows: tuple[WindowReads, ...] = ()
        copies, moves, extra = summed(plan.ops) if plan.ops else NO_COPIES
        if plan.chunks:
            for _, _, new, num_stored, _, padding in plan.chunks:
                prefill += ((new + padding, num_stored),)
        if flight.saved:
            repeated = self._meter.repeated_reads(plan, flight.usage)
        if self._windows and plan.decode_seqs:
            windows = windows_of(plan, state.batch, self._windows)
        decodes, context, longest = plan.decode_seqs, plan.decode_context, plan.decode_max_context
        num, forks = flight.num_running, plan.forks
        counts = decodes, context, longest, repeated, prefill, num, copies, moves, extra, forks
        return record(Work, (*counts, windows, 0))

    def _set_steps(self, flight: Flight, by_ps: int) -> None:
        """Sets the number of iterations: up to the next end of an output or promise, or to the
        first boundary at or after by_ps or the time of a snapshot.
        """
        promised, durations = flight.plan.guaranteed_steps, self._cost.decode(flight.work)
        if not are_durations(durations):
            raise wrong_durations(self._cost, durations)
        self._num_spans += 1
        self._is_checked = not self._num_spans & (self._num_spans - 1)  # 1, 2, 4, 8, ...
        if self._is_checked:
            audit.check_decode(self._cost, flight.work, durations)
        first_ps, growth_ps, most = durations
        steps = self._steps_to_change = self._outputs.steps_to_change()
        if steps > promised:  # by comparisons: `min` takes as long as twenty of them
            steps = 1 + promised
        if steps > most:
            steps = most
        if flight.saved or flight is self._of_groups:
            if flight.saved:
                self._checks.repeated_reads(flight.work)
            steps = min(steps, self._meter.max_steps(flight.usage))
        duration_ps = steps * first_ps + growth_ps * (steps * (steps - 1) // 2)
        if by_ps > self._snapshots.next_ps:
            by_ps = self._snapshots.next_ps
        elapsed_ps = by_ps - flight.start_ps
        if by_ps < UNBOUNDED and steps > 1 and duration_ps > elapsed_ps:
            steps = durations.steps_to_reach(elapsed_ps) if elapsed_ps > 0 else 1
            duration_ps = steps * first_ps + growth_ps * (steps * (steps - 1) // 2)
        flight.steps, flight.durations, flight.growth_ps = steps, durations, growth_ps
        flight.end_ps = flight.start_ps + duration_ps

    def end(self, flight: Flight) -> None:
        """The iterations have run: commit their results, and record them."""
        if flight.plan.chunks or flight is self._of_groups:
            self._end_prompts(flight)
            return
        steps, batch, advance, results = flight.steps, self._state.batch, self._advance, NOTHING
        finished: list[SequenceGroup] = []
        if not flight.repeats or steps >= self._steps_to_change:
            results = self._outputs.decoded(steps)
        if not flight.is_promised:
            _, finished, grown = self._scheduler.commit(flight.plan, steps, results)
        else:
            answer = advance(batch, steps)
            if not isinstance(answer, Grant) or answer.ops != NO_OPS:
                raise broken_promise(self._policy, steps, answer)
            grown = answer
            batch.extended += steps
            batch.steps += steps
            if results is not NOTHING:  # the last step is committed with its results
                batch.steps -= 1
                finished = self._scheduler.commit(flight.plan, 1, results).finished
        ended, parents, _, _ = results
        changed = finished or parents
        if self._is_checked and not changed and (steps > 1 or flight.is_promised):
            audit.check_growth(self._policy, flight.usage, grown)
        memory = self._meter.close_decodes(flight, grown)
        self._recorder.fused_span(flight, memory, ended, ())
        for group in finished:
            self._meter.forget(group)
            self._departures.finish(group, flight.end_ps)

    def _end_prompts(self, flight: Flight) -> None:
        """`end` of iterations that compute prompts, or leave some waiting for their next chunk."""
        plan, steps, outputs, meter = flight.plan, flight.steps, self._outputs, self._meter
        results = outputs.results(plan, steps)
        first_tokens, finished, _ = outcome = self._scheduler.commit(plan, steps, results)
        outputs.follow(plan, outcome)
        memory: SpanAccount
        if flight is self._of_groups:
            duration_ps = flight.end_ps - flight.start_ps
            memory = meter.close(plan, flight.durations, steps, duration_ps, outcome)
        else:
            memory = meter.close_prompts(flight, first_tokens, finished)
        self._recorder.fused_span(flight, memory, results.ended, first_tokens)
        for group in finished:
            self._departures.finish(group, flight.end_ps)


def is_launched(cost: CostModel, plan: Plan) -> bool:
    """True if the cost model says how the host launches the plan's iterations."""
    return cost.launch(*launched_counts(cost, plan)) is not None


def set_one_step(cost: CostModel, flight: Flight) -> None:
    """The plan is carried out once."""
    duration_ps = cost.iteration(flight.work)
    flight.steps, flight.durations = 1, record(Affine, (duration_ps, 0, 1))
    flight.growth_ps = 0
    if type(duration_ps) is not int or duration_ps < 1:  # as `are_durations`
        raise wrong_durations(cost, flight.durations)
    flight.end_ps = flight.start_ps + duration_ps
