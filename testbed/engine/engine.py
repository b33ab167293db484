"""The SimPy process: plan, wait, commit."""

from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.core.slots import Ops, Transfer, Usage, record
from testbed.cost.model import UNBOUNDED, Affine, CostModel, are_durations
from testbed.engine import audit
from testbed.engine.calendar import Calendar, Links
from testbed.engine.meter import Meter
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.memory.policy import PoolSpec
from testbed.sched.plan import Plan, whole, windows_of, work_of
from testbed.sched.scheduler import Scheduler

ProcessGenerator = Generator[simpy.Event, Any, None]


class Samples:
    """Picks the first, the second, the fourth, the eighth time: what is always wrong is seen, at
    almost no cost.
    """

    def __init__(self) -> None:
        self.count = 0

    def due(self) -> bool:
        """Count one time more; whether to look at this one."""
        self.count += 1
        return not self.count & (self.count - 1)


class Engine:
    """Serves what is submitted until `close` was called and nothing is left, or until stop_ps.

    It may carry out many identical iterations at once, as many as the meter can see, but ends a
    span where a request ends, at the first iteration boundary at or after the next mark, the next
    landing of a transfer or the plan's wake_ps and, where an arrival could change the next
    decision, the next event for which `expect` was called; events of other engines on the same
    clock do not end it. Step by step it gives the same, bit for bit. A client may set `ended`,
    which is called with the id of each that was answered or turned away, at that time.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        cost: CostModel,
        meter: Meter,
        recorder: Recorder,
        max_len: int,
        marks_ps: Iterable[int] = (),
        stop_ps: int = UNBOUNDED,
        pool: PoolSpec | None = None,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.outputs: Outputs = meter.outputs
        self.cost = cost
        self.meter = meter
        self.recorder = recorder
        recorder.policy = type(scheduler.policy).__name__
        self.max_len = max_len
        self._pool = pool
        self.calendar = Calendar(env, marks_ps, stop_ps)
        self.links = Links(env, cost, self.calendar.rouse)
        self._decodes, self._spans, self._tables = Samples(), Samples(), Samples()
        self._closed = False
        self.ended: Callable[[int], None] = lambda request_id: None

    def expect(self, at_ps: int) -> None:
        """Announce an event addressed to this engine, such as a `submit`, before the span begins
        that it could end.
        """
        self.calendar.expect(at_ps)

    def submit(self, request: Request) -> None:
        """A request arrives now; one that could never run is turned away at once."""
        self.calendar.happened(request)
        self.recorder.totals.arrived += 1
        final_len, scheduler = request.final_len, self.scheduler
        policy = scheduler.state.policy
        if final_len > self.max_len:
            reason = f"{final_len} tokens are more than the longest sequence of {self.max_len}"
        elif final_len > whole(
            policy, "max_seq_len()", policy.max_seq_len(request.prompt_len, request.num_seqs)
        ):
            reason = f"{request.num_seqs} x {final_len} tokens do not fit the empty pool"
        else:
            self.outputs.arrived(request)
            scheduler.add(request.incoming)
            self.calendar.rouse()
            return
        self.recorder.rejected(request, reason)
        self.ended(request.request_id)

    def close(self) -> None:
        self._closed = True
        self.calendar.rouse()

    def serve(self) -> ProcessGenerator:
        scheduler, calendar, links = self.scheduler, self.calendar, self.links
        state, meter, outputs, recorder = scheduler.state, self.meter, self.outputs, self.recorder
        waiting, running, swapped = state.waiting, state.running, state.swapped
        start_ps = self._now_ps()
        while start_ps < calendar.stop_ps:
            if calendar.mark_ps <= start_ps or links.landed:
                self._catch_up(start_ps)
            scheduler.now_ps = start_ps
            plan = scheduler.plan()
            if plan.rejected:
                self._turn_away(plan)
            if not plan.decode_seqs and not plan:
                if not (yield from self._idle(plan)):
                    break
                start_ps = self._now_ps()
                continue
            used, durations, steps = self._begin(plan, start_ps)
            duration_ps = durations.total_ps(steps) if steps > 1 else durations.first_ps
            calendar.is_in_span = steps > 1 and plan.ends_on_arrival
            num_waiting, num_swapped = len(waiting), len(swapped)
            late = self._begin_transfers(plan.ops) if plan.ops else ()
            yield self.env.timeout(duration_ps)
            calendar.is_in_span = False
            if late:
                links.begin(late)
            outcome = scheduler.commit(plan, steps, outputs.results(plan, steps))
            if plan.chunks or plan.swapped_in:
                outputs.follow(plan, outcome)
            seen = meter.close(plan, durations, steps, duration_ps, outcome)
            recorder.span(start_ps, duration_ps, steps, plan, num_waiting, num_swapped, seen)
            start_ps += duration_ps
            if outcome.first_tokens:
                recorder.first_tokens(outcome.first_tokens, start_ps)
            for group in outcome.finished:
                recorder.served(outputs.removed(group.request.request_id), group, start_ps)
                self.ended(group.request.request_id)
            if steps > 1 and not outcome.finished and self._spans.due():
                audit.check_growth(state.policy, used, outcome.grown)
            if len(outputs.requests) != len(waiting) + len(running) + len(swapped):
                audit.check_balance(scheduler, recorder.totals)
        self._stop(start_ps)

    def _begin(self, plan: Plan, start_ps: int) -> tuple[Usage, Affine, int]:
        """The pool as the plan's first iteration sees it, the iterations' durations, and how many
        to take at once.
        """
        state, cost = self.scheduler.state, self.cost
        used = state.policy.usage()
        if plan.chunks and self._tables.due():
            audit.check_tables(state, used)
        self.meter.open(plan, used)
        work = work_of(plan, self.meter.repeated_reads(plan, used), len(state.running))
        if cost.windows and plan.decode_seqs:
            work = work._replace(windows=windows_of(plan, state.batch, cost.windows))
        if work.prefill and state.memory.drops_tokens is not None:
            num_stored = state.memory.num_stored
            work = work._replace(
                prefill=tuple((new, num_stored(before)) for new, before in work.prefill)
            )
        is_span = bool(plan.guaranteed_steps) and plan.repeats
        durations: Any = (
            cost.decode(work) if is_span else record(Affine, (cost.iteration(work), 0, 1))
        )
        if not are_durations(durations):
            raise audit.wrong_durations(cost, durations)
        if not is_span:
            return used, durations, 1
        if self._decodes.due():
            audit.check_decode(cost, work, durations)
            audit.check_repeated(state.memory, state.batch, work)
        return used, durations, self._num_steps(plan, used, durations, start_ps)

    def _num_steps(self, plan: Plan, used: Usage, durations: Affine, start_ps: int) -> int:
        """How many iterations of a plan that repeats are taken at once."""
        calendar, promised = self.calendar, plan.guaranteed_steps
        if type(promised) is not int or promised < 0 or type(plan.wake_ps) is not int:
            raise audit.wrong_promise(self.scheduler, plan)
        most = min(
            durations.steps, self.meter.max_steps(used)
        )  # min of two: the compiler has no call for these
        steps = min(min(1 + promised, self.outputs.steps_to_end()), most)
        end_ps = min(min(calendar.mark_ps, plan.wake_ps), self.links.next_ps)
        if plan.ends_on_arrival and calendar.expected_ps < end_ps:
            end_ps = calendar.expected_ps
        if steps == 1 or end_ps == UNBOUNDED:
            return steps
        return min(steps, durations.steps_to_reach(end_ps - start_ps))

    def _idle(self, plan: Plan) -> Generator[simpy.Event, Any, bool]:
        """The plan computes nothing: wait until another plan may; False if none will."""
        state = self.scheduler.state
        if plan.ops or plan.preempted:
            self._without_tokens(plan)
        if (
            plan.rejected or self.links.landed or (plan.preempted and state.running)
        ):  # a prompt in prefill goes on
            return True
        wake_ps = whole(self.scheduler, "wake_ps", plan.wake_ps)
        if (state.waiting or state.swapped) and not self.links.num_pending and wake_ps == UNBOUNDED:
            group = (state.swapped or state.waiting)[0]
            stuck = f"request {group.request.request_id} ({group.prefill_len} tokens)"
            raise PlugInError(f"{type(state.policy).__name__} refuses {stuck} though nothing runs")
        if self._closed and not (state.waiting or state.swapped):
            return False
        yield self.calendar.awake(wake_ps)
        for mark_ps in self.calendar.take_marks(
            self._now_ps() - 1
        ):  # as they would be at their own time
            self.recorder.mark(mark_ps, mark_ps)
        return True

    def _catch_up(self, now_ps: int) -> None:
        for mark_ps in self.calendar.take_marks(now_ps):
            self.recorder.mark(mark_ps, now_ps)
        if self.links.landed:  # what they brought may be found, what they read may be evicted
            transfers = self.scheduler.memory.transfers
            assert transfers is not None, "the policy has begun these transfers"
            for move_id in self.links.take_landed():
                transfers.landed(move_id)
            self.scheduler.state.memory_released()

    def _stop(self, now_ps: int) -> None:
        self.recorder.end_ps = now_ps
        self.recorder.settle()
        for mark_ps in self.calendar.take_marks(now_ps):
            self.recorder.mark(mark_ps, now_ps)

    def _begin_transfers(self, ordered: list[Ops]) -> tuple[Transfer, ...]:
        """Begin the transfers in the background; returns those that wait for the moves of this
        iteration.
        """
        if self._pool:
            audit.check_moves(self.scheduler.policy, ordered, self._pool)
        transfers = tuple([transfer for ops in ordered for transfer in ops.background])
        if not transfers or any(ops.moves or ops.copies for ops in ordered):
            return transfers
        self.links.begin(transfers)
        return ()

    def _without_tokens(self, plan: Plan) -> None:
        """The plan has begun transfers, or preempted groups that wait for one; it takes no time."""
        self._begin_transfers(plan.ops)
        self.meter.open(plan, self.scheduler.policy.usage())
        self.scheduler.commit(plan, 0, self.outputs.results(plan, 0))
        self.recorder.moved(plan)

    def _turn_away(self, plan: Plan) -> None:
        for group in plan.rejected:
            request = self.outputs.removed(group.request.request_id)
            self.recorder.rejected(request, plan.reasons[request.request_id])
            self.ended(request.request_id)

    def _now_ps(self) -> int:
        return int(
            self.env.now
        )  # whole already, because every delay is; SimPy's type allows for floats
