"""The one engine: plan, execute, commit, record."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeAlias

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Usage
from testbed.cost.model import UNBOUNDED, Work
from testbed.engine import audit
from testbed.engine.changes import Change, Changes
from testbed.engine.clock import Process
from testbed.engine.departures import Departures
from testbed.engine.draft_meter import DraftMeter
from testbed.engine.draft_path import DraftPath
from testbed.engine.due_arrivals import DueArrivals
from testbed.engine.executor import Executor, Flight
from testbed.engine.fused_path import FusedPath
from testbed.engine.handover_hooks import HandoverHooks
from testbed.engine.listeners import Listener, TokenListener
from testbed.engine.meter import Meter, PlainMeter
from testbed.engine.mode import WHOLE_RUN, Mode
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sampled_checks import SampledChecks
from testbed.engine.snapshot_times import SnapshotTimes
from testbed.engine.span_meter import SpanMeter
from testbed.engine.totals import SpanMemory
from testbed.sched.handed_over import land
from testbed.sched.plan import Outcome, Plan, Results, plain_int, windows_of, work_of
from testbed.sched.scheduler import Scheduler

HandBack: TypeAlias = Callable[[list[Request]], None]


class Engine:
    """Serves what is submitted until `close` was called and nothing is left, or until stop_ps.

    Requests may be submitted and cancelled at any time, between two turns of the loop. An arrival
    that could change the next plan, and a cancellation, end a span of iterations at the first
    boundary at or after it, as the run step by step would see them. Plans in flight are a queue: of
    one plan, or of two if the scheduler plans ahead.

    Attributes:
        scheduler: makes the plans.
        executor: carries them out.
        outputs: what the model will say.
        recorder: keeps what the run leaves behind.
        meter: measures the memory pool in every iteration.
        clock: the executor's.
        max_len: the longest sequence in tokens.
        stop_ps: when the engine stops at the latest.
        hooks: what it does for other engines: it prefills for them, or decodes what they have
            prefilled, or does nothing for them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        outputs: Outputs,
        recorder: Recorder,
        max_len: int,
        mode: Mode = WHOLE_RUN,
    ) -> None:
        """An engine without requests; the arguments but for the mode are its attributes."""
        self.scheduler = scheduler
        self.executor = executor
        self.outputs = outputs
        self.recorder = recorder
        self.max_len = max_len
        self.stop_ps = mode.stop_ps
        self.clock = executor.clock
        self.meter = _meter(scheduler, outputs, fast_forward=mode.fast_forward)
        recorder.policy = scheduler.memory.name
        executor.on_landed = self.replan
        self.hooks = HandoverHooks()
        self._takes_part = False
        self._alarm = executor.alarm
        self._transfers = scheduler.memory.transfers
        self._in_flight: deque[Flight] = deque()
        self._current: Flight | None = None  # the plan in flight whose iterations have begun
        self._snapshots = SnapshotTimes(recorder, [*mode.snapshots_ps, mode.stop_ps])
        self._departures = Departures(scheduler, executor, outputs, self.meter, recorder)
        self._listeners = self._departures.listeners
        self._changes = Changes()
        self._checks = SampledChecks(scheduler.state)
        self._fused_path = self._make_fused_path()
        self._prompt_plans = None if self._fused_path is None else scheduler.prompt_plans
        self._is_idle = False
        self._ended_ps: int | None = None  # of the last iteration, if nothing has slept since
        self._is_closed = False
        self._arrivals = DueArrivals((), self.never_fits, closes=False)
        self._is_alone = False  # nothing else happens on the clock, so it need not keep up

    def listen(self, listener: Listener) -> None:
        """Call the listener at the end of each request."""
        self._listeners.add(listener)

    def listen_to_tokens(self, listener: TokenListener) -> None:
        """Call the listener at each token too."""
        self._listeners.add_for_tokens(listener)
        self._fused_path = None
        self.executor.on_step = self._step_ended

    def take_part(self, hooks: HandoverHooks) -> None:
        """Take part in hand-overs: the engine calls `hooks` for its part."""
        self.hooks = self._departures.hooks = hooks
        self._takes_part = True
        self._fused_path = None

    def submit(self, request: Request) -> bool:
        """A request arrives now. False if it could never run, and is rejected at once."""
        reason = self.never_fits(request)
        self._arrived(request, reason)
        return not reason

    def follow(self, requests: Iterable[Request], *, closes: bool) -> None:
        """Take these requests, in order of arrival, at the boundaries at or after their times: as
        if they were submitted then, for an engine whose queue nothing else sees. closes: it closes
        when the last one has come.
        """
        self._arrivals = DueArrivals(requests, self.never_fits, closes=closes)
        self._is_alone = self._transfers is None
        if closes and self._arrivals.next_ps == UNBOUNDED:
            self.close()

    def _take_arrivals(self, now_ps: int) -> None:
        arrivals = self._arrivals
        while arrivals.next_ps <= now_ps and arrivals.next_ps != UNBOUNDED:
            request, reason = arrivals.take()
            self._arrived(request, reason)
        if arrivals.closes and arrivals.next_ps == UNBOUNDED:
            self.close()

    def _arrived(self, request: Request, reason: str) -> None:
        """A request has arrived; reason: why it could never run, empty if it could."""
        self.recorder.totals.arrived += 1
        if reason:
            self._departures.reject(request, reason, self.clock.now_ps)
            return
        self.outputs.arrived(request)
        group = self.scheduler.add(request.incoming)
        if self.executor.follows_groups:
            self.executor.added(group)
        if self._is_idle:
            self._wake_if_idle()
        for flight in self._in_flight:
            if flight.plan.ends_on_arrival:
                self._cut(flight)

    def never_fits(self, request: Request) -> str:
        """The reason why the request could never run; empty if it could."""
        prompt_len, policy = request.prompt_len, self.scheduler.state.policy
        final_len = prompt_len + request.output_len
        if final_len > self.max_len:
            return f"{final_len} tokens are more than the longest sequence of {self.max_len}"
        longest = policy.max_seq_len(prompt_len, request.num_seqs)
        if type(longest) is not int:
            plain_int(policy, "max_seq_len()", longest)
        if final_len > longest:
            return f"{request.num_seqs} x {final_len} tokens do not fit the empty pool"
        most = self.scheduler.max_output_len(prompt_len)
        if most is not None and request.output_len > most:
            return f"its output would be ended at {most} tokens, for which there is room"
        return ""

    def cancel(self, request_id: int) -> bool:
        """Ends a request that is no longer waited for: it leaves at the next iteration boundary,
        unless it has ended by then. False if it has ended already, or has not arrived.

        If a plan is in flight behind the present iteration, it leaves an iteration later.
        """
        if request_id not in self.outputs.requests:
            return False
        self.change(lambda now_ps: self._departures.cancel(request_id, self._in_flight, now_ps))
        return True

    def close_session(self, session: int) -> None:
        """The last request of the session has ended: what is kept for it is given back at the next
        iteration boundary, as by `cancel`.
        """
        self.change(lambda now_ps: self.scheduler.close_session(session))

    def fail(self, hand_back: HandBack) -> None:
        """The engine ends at the next iteration boundary, with all that its memory stores.

        hand_back: called then, with the requests that it has not answered, in order of arrival.
        Nothing is recorded of them but `Recorder.num_moved`.
        """
        self.change(lambda now_ps: self._fail(hand_back, now_ps))

    def change(self, change: Change) -> None:
        """Something is to change between two iterations, which may give memory back."""
        self._changes.unplanned.append(change)
        self.replan()

    def replan(self) -> None:
        """Drops a promise, because the next plan sees another state: a plan is made at the next
        boundary.
        """
        self._wake_if_idle()
        for flight in self._in_flight:
            self._cut(flight)

    def take_over(self, request: Request, group: SequenceGroup, first_ps: int) -> None:
        """A group for which slots were reserved decodes from now on: its prompt, which another
        engine has computed, has landed. first_ps: when its first token was there. Called between
        two iterations.
        """
        self.recorder.taken_over(request, first_ps, self.clock.now_ps)
        self.outputs.arrived(request)
        self.executor.added(group)
        land(self.scheduler.state, group)
        self.outputs.decodes(group)
        self.meter.joined(group)

    @property
    def flight(self) -> Flight | None:
        """The plan whose iterations run now."""
        return self._current

    def close(self) -> None:
        """No request will be submitted any more."""
        self._is_closed = True
        self._wake_if_idle()

    def serve(self) -> Process:
        """The loop, for the clock to run."""
        changes = self._changes
        yield self._alarm.set(self.clock.now_ps)
        now_ps = self.clock.catch_up()
        while now_ps < self.stop_ps:
            if self._arrivals.next_ps <= now_ps:
                self._take_arrivals(now_ps)
            if self._snapshots.next_ps <= now_ps:
                self._snapshots.at_boundary(now_ps)
            if changes.due or changes.unplanned:
                self._make_changes(now_ps)
                if self.stop_ps <= now_ps:
                    continue
                if self._in_flight and not self._in_flight[0].plan:
                    self._drop_emptied()
                    continue
            if not self._in_flight:
                begun = self._begin_next(now_ps)
                if isinstance(begun, Flight):
                    if not self._is_alone:
                        yield from self._until_ended(begun)
                    now_ps = self._end_fused(begun)
                    continue
                if self._is_alone and self.clock.now_ps < now_ps:
                    yield self._alarm.set(now_ps)
                if not begun.decode_seqs and not begun:
                    if not (yield from self._idle(begun)):
                        break
                    now_ps = self.clock.catch_up()
                    continue
                self._in_flight.append(self.executor.start(begun))
            flight = self._in_flight[0]
            self._begin(flight, now_ps)
            if self.scheduler.plans_ahead and self.scheduler.can_plan_ahead():
                yield from self._plan_ahead(flight)
            results = yield from self.executor.wait(flight)
            self._commit(flight, results)
            now_ps = self.clock.catch_up()
        self._stop(now_ps)

    def _begin_next(self, now_ps: int) -> Flight | Plan:
        """Begin the next plan by the fused path; the plan if it takes the plain one."""
        fused, state = self._fused_path, self.scheduler.state
        if fused is None:
            return self._next_plan(now_ps)
        start_ps, arrival_ps = self._ended_ps or now_ps, self._arrivals.next_served_ps
        if not state.waiting or state.waiting[0] is state.refused:
            flight = fused.begin_next(start_ps, arrival_ps)
            if flight is not None:
                return flight
        plan = self._next_plan(now_ps)
        if not (plan.decode_seqs or plan.chunks or plan.drafts):
            return plan
        until_ps = arrival_ps if plan.ends_on_arrival else UNBOUNDED
        return fused.begin(plan, start_ps, until_ps) or plan

    def _next_plan(self, now_ps: int) -> Plan:
        """The plan for what has arrived, ended and landed by now."""
        scheduler, state = self.scheduler, self.scheduler.state
        queued = len(state.waiting) + len(state.running) + len(state.swapped)
        is_odd = state.loading or len(self.outputs.requests) != queued
        if is_odd and not self._in_flight:
            audit.check_balance(scheduler, self.recorder.totals)
        transfers = self._transfers
        if transfers is not None and (landed := self.executor.take_landed()):
            for move_id in landed:
                transfers.landed(move_id)
            scheduler.state.memory_released()
        if self._takes_part:
            self.hooks.before_plan()
        scheduler.now_ps = now_ps
        plan = None if self._prompt_plans is None else self._prompt_plans.plan()
        if plan is None:
            plan = scheduler.plan()
        if plan.preempted:
            self.outputs.preempted(plan)
        if plan.rejected:
            self._departures.reject_planned(plan, now_ps)
        return plan

    def _until_ended(self, flight: Flight) -> Generator[Any, None, None]:
        """The plan of the fused path runs, and may be cut."""
        self._in_flight.append(flight)
        self._current = flight
        yield self._alarm.set(flight.end_ps)  # a cut brings both forward
        self._in_flight.clear()
        self._current = None

    def _end_fused(self, flight: Flight) -> int:
        """The plan has run; when."""
        end_ps = self._ended_ps = flight.end_ps
        if self._arrivals.next_ps <= end_ps:
            self._take_arrivals(end_ps)
        assert self._fused_path is not None, "it has begun the plan"
        self._fused_path.end(flight)
        return end_ps

    def _begin(self, flight: Flight, now_ps: int) -> None:
        """The plans before this one are committed: its first iteration begins, when the one before
        has ended; in real time that is a little before now_ps.
        """
        plan, state = flight.plan, self.scheduler.state
        usage = state.policy.usage()
        if plan.chunks:
            self._checks.tables(usage)
        if plan.preempted or plan.ops:
            self.recorder.moved(plan)
            self.recorder.paused(plan.preempted)
        self.meter.open(plan, usage)
        flight.start_ps, flight.usage = self._ended_ps or now_ps, usage
        if plan.swapped_in:
            flight.stepping = [group.request_id for group in plan.stepping]
        flight.num_waiting, flight.num_swapped = len(state.waiting), len(state.swapped)
        if state.loading:
            flight.num_waiting += len(state.loading)
        flight.work = self._work(plan, usage)
        max_steps, wake_ps = 1, UNBOUNDED
        flight.repeats = bool(plan.guaranteed_steps) and plan.repeats
        if flight.repeats:
            if usage.saved:
                self._checks.repeated_reads(flight.work)
            max_steps, wake_ps = self._max_steps(plan, usage), plan.wake_ps
            if plan.ends_on_arrival:
                wake_ps = min(wake_ps, self._arrivals.next_served_ps)
        if self._listeners.wants_tokens:
            self._listeners.list_decoding(flight)
        self._current = flight
        self.executor.begin(flight, max_steps, self._snapshots.next_ps, wake_ps)

    def _work(self, plan: Plan, usage: Usage) -> Work:
        """The work of the plan's first iteration: what it computes, reads and moves."""
        state = self.scheduler.state
        work = work_of(plan, self.meter.repeated_reads(plan, usage), len(state.running))
        if (windows := self.executor.windows) and work.decode_seqs:
            work = work._replace(windows=windows_of(plan, state.batch, windows))
        if work.prefill and state.memory.drops_tokens is not None:
            num_stored = state.memory.num_stored
            chunks = zip(plan.chunks, work.prefill, strict=True)
            work = work._replace(
                prefill=tuple(
                    (new, num_stored(chunk.seq.prompt_len, before))
                    for chunk, (new, before) in chunks
                )
            )
        return work

    def _max_steps(self, plan: Plan, usage: Usage) -> int:
        """The number of iterations of a repeated plan that may run at once."""
        promised = plan.guaranteed_steps
        if type(promised) is not int or promised < 0 or type(plan.wake_ps) is not int:
            raise audit.wrong_promise(self.scheduler, plan)
        left = self.outputs.steps_to_change()
        return min(1 + promised, left, self.meter.max_steps(usage))

    def _plan_ahead(self, flight: Flight) -> Generator[Any, None, None]:
        """At the start of the last iteration, make the next plan as if that iteration had run."""
        yield from self.executor.wait_for_last(flight)
        now_ps, plan, steps = self.clock.catch_up(), flight.plan, flight.steps
        flight.is_last = True
        if self._arrivals.next_ps <= now_ps:
            self._take_arrivals(now_ps)
        flight.accepted = self.outputs.accepted(plan)
        flight.ended = self.outputs.ended(plan, steps, flight.accepted)
        # Those that end whatever is accepted: so much a server knows too.
        certain = self.outputs.ended(plan, steps) if plan.drafts else flight.ended
        flight.outcome = self.scheduler.anticipate(plan, steps, certain)
        if steps > 1 and not flight.outcome.finished:
            self._checks.growth(flight.usage, flight.outcome.grown)
        self.outputs.follow(plan, flight.outcome, flight.ended)
        flight.memory = self._measured(flight, flight.outcome)
        self._changes.make_due()
        ahead = self._next_plan(now_ps)
        if ahead.decode_seqs or ahead:
            self._in_flight.append(self.executor.start(ahead))
        elif ahead.ops or ahead.preempted:
            flight.preempted_behind = ahead.preempted
            self._move(ahead)

    def _measured(self, flight: Flight, outcome: Outcome) -> SpanMemory:
        durations, steps = flight.durations, flight.steps
        return self.meter.close(flight.plan, durations, steps, durations.total_ps(steps), outcome)

    def _commit(self, flight: Flight, results: Results) -> None:
        """The iterations have run: commit their results, record them, call the listeners."""
        plan, steps, recorder = flight.plan, flight.steps, self.recorder
        self._in_flight.popleft()
        self._current = None
        if self._arrivals.next_ps <= flight.end_ps:
            self._take_arrivals(flight.end_ps)
        outcome = self.scheduler.commit(plan, steps, results)
        changed = outcome.finished or results.parents
        if steps > 1 and flight.outcome is None and not changed:
            self._checks.growth(flight.usage, outcome.grown)
        end_ps = self._ended_ps = self.executor.committed(flight, outcome, results)
        duration_ps = end_ps - flight.start_ps
        memory = self._close(flight, outcome, duration_ps)
        recorder.span(
            flight.start_ps,
            duration_ps,
            steps,
            plan,
            flight.num_waiting,
            flight.num_swapped,
            memory,
            flight.durations.growth_ps,
        )
        recorder.tokens(plan, steps, flight.stepping, outcome.first_tokens, results, end_ps)
        if flight.preempted_behind:
            recorder.paused(flight.preempted_behind)
        if self._takes_part:
            self.hooks.computed(plan, flight.start_ps, end_ps)
        if self._listeners.wants_tokens:
            self._listeners.last_step_ended(flight, outcome, results.accepted, end_ps)
        for group in outcome.finished:
            self._departures.finish(group, end_ps)

    def _close(self, flight: Flight, outcome: Outcome, duration_ps: int) -> SpanMemory:
        """The memory that the iterations saw."""
        if flight.outcome is None:
            if flight.plan.chunks or flight.plan.swapped_in:
                self.outputs.follow(flight.plan, outcome)
            return self.meter.close(
                flight.plan, flight.durations, flight.steps, duration_ps, outcome
            )
        for group in outcome.finished:
            self.meter.forget(group)
        if outcome.finished:
            self._end_promises()
        assert flight.memory is not None, "measured when the next plan was made ahead"
        if flight.durations.total_ps(flight.steps) == duration_ps:
            return flight.memory
        return flight.memory.lasting(duration_ps)

    def _end_promises(self) -> None:
        """Ends the promises of a plan behind the present one: memory was released."""
        for flight in self._in_flight:
            flight.plan.guaranteed_steps = 0

    def _make_changes(self, now_ps: int) -> None:
        if not self._in_flight:
            self._changes.make_due()
        if self._changes.make(now_ps):
            self._end_promises()

    def _drop_emptied(self) -> None:
        """The plan that is in flight and has not begun had only prompts of requests that were
        cancelled: it takes no time, and another plan is made in its place.
        """
        flight = self._in_flight.popleft()
        self.executor.drop(flight)
        if flight.plan.ops or flight.plan.preempted:
            self._move(flight.plan)
            self.recorder.paused(flight.plan.preempted)

    def _fail(self, hand_back: HandBack, now_ps: int) -> None:
        handed_back = self._departures.hand_back_all(self._in_flight, now_ps)
        self.stop_ps = now_ps
        self.executor.drop_transfers()
        hand_back(handed_back)

    def _idle(self, plan: Plan) -> Generator[Any, None, bool]:
        """The plan computes nothing: wait until another plan may; False if none will."""
        state, executor = self.scheduler.state, self.executor
        if plan.ops or plan.preempted:
            self._move(plan)
            self.recorder.paused(plan.preempted)
        is_prefilling = plan.preempted and (state.running or state.loading)
        if plan.rejected or is_prefilling or executor.has_landed or self._changes.unplanned:
            return True
        wake_ps = plain_int(self.scheduler, "wake_ps", plan.wake_ps)
        queue = [*state.swapped, *state.waiting, *state.loading, *state.running.values()]
        is_waiting = executor.has_transfers or state.reserved or state.leased
        if queue and not is_waiting and wake_ps == UNBOUNDED:
            group = queue[0]
            stuck = f"request {group.request_id} ({group.prefill_len} tokens)"
            raise PlugInError(f"{type(state.policy).__name__} refuses {stuck} though nothing runs")
        if self._is_closed and not queue:
            return False
        yield from self._sleep(wake_ps)
        return True

    def _sleep(self, wake_ps: int) -> Generator[Any, None, None]:
        """Nothing runs: wait for an arrival, a landing, wake_ps or stop_ps."""
        now_ps = self.clock.now_ps
        if wake_ps <= now_ps:
            raise PlugInError(
                f"a scheduler asks at {now_ps} ps to plan again at {wake_ps} ps, which is not later"
            )
        self._is_idle, self._ended_ps = True, None
        yield self._alarm.set(min(self.stop_ps, wake_ps, self._arrivals.wake_ps))
        self._is_idle, now_ps = False, self.clock.now_ps
        if self._arrivals.next_ps <= now_ps:
            self._take_arrivals(now_ps)
        self._snapshots.after_sleep(now_ps)

    def _move(self, plan: Plan) -> None:
        """The plan has begun transfers, or preempted groups; it computes nothing and takes no
        time.
        """
        self.recorder.moved(plan)
        self.executor.move(plan)
        self.meter.open(plan, self.scheduler.state.policy.usage())

    def _wake_if_idle(self) -> None:
        if self._is_idle:
            self._alarm.bring_forward(self.clock.now_ps)

    def _cut(self, flight: Flight) -> None:
        """Something has happened that could change the plan after this one."""
        if flight is self._current:
            self.executor.cut(flight, self.clock.now_ps)
        else:
            flight.plan.guaranteed_steps = 0

    def _stop(self, now_ps: int) -> None:
        self.recorder.end_ps = now_ps
        self.recorder.settle()
        self._snapshots.at_boundary(now_ps)

    def _make_fused_path(self) -> FusedPath | DraftPath | None:
        """The fused path, if the parts of the engine have one."""
        cost, meter = self.executor.decode_cost, self.meter
        if cost is not None and isinstance(meter, DraftMeter):
            return DraftPath(
                self.scheduler,
                cost,
                self.outputs,
                meter,
                self.recorder,
                self._departures,
                self._checks,
                self._work,
            )
        if cost is None or not isinstance(meter, SpanMeter):
            return None
        return FusedPath(
            self.scheduler,
            cost,
            self.outputs,
            meter,
            self.recorder,
            self._departures,
            self._snapshots,
            self._checks,
        )

    def _step_ended(self, flight: Flight) -> None:
        self._listeners.step_ended(flight, self.clock.now_ps)


def _meter(scheduler: Scheduler, outputs: Outputs, *, fast_forward: bool) -> Meter:
    """The fastest meter for the memory of the scheduler; the plain one is right for any."""
    if not (fast_forward and scheduler.memory.measures_spans):
        return PlainMeter(scheduler, outputs)
    if not scheduler.steps_in_turn:
        return SpanMeter(scheduler, outputs)
    is_walked = scheduler.memory.layered is not None  # a footprint has no place for each window
    return PlainMeter(scheduler, outputs) if is_walked else DraftMeter(scheduler, outputs)
