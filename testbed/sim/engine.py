"""The SimPy process: plan, wait, commit."""

from collections.abc import Callable, Generator, Iterable
from math import inf
from typing import Any

import simpy

from testbed.core.errors import PlugInError
from testbed.core.records import record
from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.core.slots import Usage
from testbed.cost.model import UNBOUNDED, Affine, CostModel
from testbed.sched.plan import Outcome, Plan, work_of
from testbed.sched.scheduler import Scheduler
from testbed.sim.audit import Samples, check_balance, check_decode, check_growth, check_prices
from testbed.sim.meter import Meter
from testbed.sim.outputs import Outputs
from testbed.sim.recorder import Recorder

ProcessGenerator = Generator[simpy.Event, Any, None]


class Engine:
    """Serves what is submitted until `close` was called and nothing is left, or until stop_ps.

    It may carry out many identical iterations at once, at most max_steps, but ends a span where a request ends, at the
    first iteration boundary at or after the next mark and, where an arrival could change the next decision, the next
    event of anybody else. With max_steps 1 it goes step by step; both give the same, bit for bit. Whoever sends
    requests may set `ended`, which is called with each that was answered or turned away, at that time.
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
        max_steps: int = UNBOUNDED,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.outputs: Outputs = meter.outputs
        self.cost = cost
        self.meter = meter
        self.recorder = recorder
        recorder.policy = type(scheduler.policy).__name__
        self.max_len = max_len
        self.max_steps = max_steps
        self._stop_ps = stop_ps
        self._marks = sorted({*marks_ps, stop_ps} - {UNBOUNDED}, reverse=True)
        self._decodes, self._spans = Samples(), Samples()
        self._closed = False
        self._wake: simpy.Event | None = None
        self.ended: Callable[[Request], None] | None = None

    def submit(self, request: Request) -> None:
        """A request arrives now; one that could never run is turned away at once."""
        self.recorder.totals.arrived += 1
        final_len = request.final_len
        if final_len > self.max_len:
            reason = f"{final_len} tokens are more than the longest sequence of {self.max_len}"
        elif final_len > self.scheduler.policy.longest(request.prompt_len, request.num_seqs):
            reason = f"{request.num_seqs} x {final_len} tokens do not fit the empty pool"
        else:
            self.outputs.arrived(request)
            self.scheduler.add(request.incoming)
            self._rouse()
            return
        self.recorder.rejected(request, reason)
        if self.ended is not None:
            self.ended(request)

    def close(self) -> None:
        """No more requests will come."""
        self._closed = True
        self._rouse()

    def serve(self) -> ProcessGenerator:
        """The process to hand to SimPy."""
        env, scheduler, residents = self.env, self.scheduler, self.scheduler.residents
        policy, meter, outputs, recorder = residents.policy, self.meter, self.outputs, self.recorder
        waiting, running, swapped = residents.waiting, residents.running, residents.swapped
        start_ps = self._now_ps()
        while start_ps < self._stop_ps:
            if self._marks:
                self._pass_marks()
            plan = scheduler.plan()
            if plan.rejected:
                self._turn_away(plan)
            if plan.decode_seqs or plan:
                used = policy.usage()
                meter.open(plan, used)
                prices, steps = self._price(plan, used, start_ps)
                duration_ps = prices.total_ps(steps) if steps > 1 else prices.first_ps
                num_waiting, num_swapped = len(waiting), len(swapped)
                yield env.timeout(duration_ps)
                outcome = scheduler.commit(plan, steps, outputs.results(plan, steps))
                if plan.chunks or plan.resumed:
                    outputs.follow(plan, outcome)
                seen = meter.close(plan, prices, steps, duration_ps, outcome)
                recorder.span(start_ps, duration_ps, steps, plan, num_waiting, num_swapped, seen)
                start_ps += duration_ps
                if outcome.finished or outcome.first_tokens or plan.ops or plan.preempted:
                    self._record(plan, outcome, start_ps)
                elif steps > 1 and self._spans.due():
                    check_growth(policy, used, outcome.grown)
                if len(outputs.requests) != len(waiting) + len(running) + len(swapped):
                    check_balance(scheduler, recorder.totals)
            elif plan.rejected:
                continue
            elif waiting or swapped:
                raise PlugInError(f"{type(policy).__name__} refuses {self._stuck()} though nothing runs")
            elif self._closed:
                break
            else:
                self._wake = env.event()
                yield self._wake
                start_ps = self._now_ps()
        recorder.end_ps = start_ps
        recorder.settle()
        self._pass_marks()

    def _price(self, plan: Plan, used: Usage, start_ps: int) -> tuple[Affine, int]:
        """The prices of the iterations that the plan allows, and how many of them to take at once."""
        residents, cost = self.scheduler.residents, self.cost
        work = work_of(plan, used.saved, len(residents.running))
        if not (plan.horizon and plan.repeats):
            if work.prefill and residents.policy.drops_tokens:
                stored = residents.policy.stored
                work = work._replace(prefill=tuple((new, stored(before)) for new, before in work.prefill))
            prices = record(Affine, (cost.iteration(work), 0, 1))
            check_prices(cost, prices)
            return prices, 1
        prices = cost.decode(work)
        check_prices(cost, prices)
        if self._decodes.due():
            check_decode(cost, work, prices)
        steps = min(1 + plan.horizon, prices.steps, self.max_steps, self.outputs.steps_to_end())
        if steps > 1 and used.saved:
            steps = min(steps, self.meter.max_steps(used))
        if steps == 1:
            return prices, 1
        bound: float = self._marks[-1] if self._marks else inf
        if plan.open:
            bound = min(bound, self.env.peek())
        if bound < inf:
            steps = min(steps, prices.steps_to_reach(int(bound) - start_ps) or 1)
        return prices, steps

    def _turn_away(self, plan: Plan) -> None:
        """Groups of the plan that the policy could never hold."""
        for group in plan.rejected:
            request = self.outputs.left(group.request.request_id)
            self.recorder.rejected(request, "the memory policy can never hold it")
            if self.ended is not None:
                self.ended(request)

    def _record(self, plan: Plan, outcome: Outcome, now_ps: int) -> None:
        """What happened to requests and groups in the iterations that have just ended."""
        totals = self.recorder.totals
        for group in outcome.first_tokens:
            self.recorder.first_token(group.request.request_id, now_ps)
        for group in outcome.finished:
            request = self.outputs.left(group.request.request_id)
            totals.finished += 1
            totals.generated += request.output_len * request.num_seqs
            self.recorder.served(request, group, now_ps)
            if self.ended is not None:
                self.ended(request)
        for group in plan.preempted:
            swapped = group.status is SequenceStatus.SWAPPED
            totals.swaps += swapped
            totals.recomputes += not swapped
        for ops in plan.ops:
            totals.copies += len(ops.copies)

    def _now_ps(self) -> int:
        return int(self.env.now)  # whole already, because every delay is; SimPy's type allows for floats

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _pass_marks(self) -> None:
        while self._marks and self._marks[-1] <= self.env.now:
            self.recorder.mark(self._marks.pop(), self._now_ps())

    def _stuck(self) -> str:
        residents = self.scheduler.residents
        group = (residents.swapped or residents.waiting)[0]
        return f"request {group.request.request_id} ({group.prefill_len} tokens)"
