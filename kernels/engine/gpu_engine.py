"""The engine's loop in real time: submit arrived requests, plan, run, commit."""

from collections.abc import Iterable, Iterator

from testbed.core.errors import PlugInError
from testbed.core.request import PS, Request
from testbed.cost.model import UNBOUNDED, Affine, Work
from testbed.engine.meter import PlainMeter
from testbed.engine.outputs import Outputs
from testbed.engine.span_meter import SpanMeter
from testbed.kernels.engine.records import Clock, Iteration, Records
from testbed.kernels.engine.runner import Runner
from testbed.sched.beams import SyntheticBeams
from testbed.sched.plan import Outcome, Plan, Results, work_of
from testbed.sched.scheduler import Scheduler


class Engine:
    """Serves requests by the plans of a scheduler, which is independent of the engine.

    window_s are two times: batch and memory are averaged between them, and no plan begins after the
    second.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        max_len: int,
        window_s: tuple[float, float] | None = None,
        lengths: dict[int, int] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.max_len = max_len
        self.stop_s = window_s[1] if window_s else float("inf")
        self.records = Records(beams=runner.sampler.history)
        # The beams are not for parents: those are the model's.
        self.outputs = Outputs(scheduler.state, SyntheticBeams(), lengths)
        # The simulator's meter: by footprints where the policy has them, else by the tables of all
        # sequences.
        spans = scheduler.memory.measures_spans
        self.meter = (SpanMeter if spans else PlainMeter)(scheduler, self.outputs)
        self._marks_s = sorted(window_s or (), reverse=True)

    def serve(self, requests: Iterable[Request]) -> Records:
        """Serve requests, in order of arrival, until all have ended or the window is over."""
        requests = [r for r in requests if r.arrival_ps < self.stop_s * PS]
        self.runner.token_buffers.prepare(r.incoming for r in requests)
        arrivals = iter(requests)
        self.clock.restart()
        upcoming = self._submit_arrived(arrivals, next(arrivals, None))
        while (start_s := self.clock.now()) < self.stop_s:
            self._pass_marks(start_s)
            self.runner.timer.start()
            self.runner.land()
            self.scheduler.now_ps = round(start_s * PS)
            plan = self.scheduler.plan()
            for group in plan.rejected:
                request = self.outputs.removed(group.request.request_id)
                self.records.recorder.rejected(request, plan.reasons[request.request_id])
            if plan:
                self._carry_out(plan, start_s)
            elif not self._idle(plan, upcoming):
                break
            upcoming = self._submit_arrived(arrivals, upcoming)
        self.records.recorder.end_ps = round(start_s * PS)
        self.records.recorder.settle()
        self.records.swaps = self.runner.moves.swap_times()
        self._pass_marks(start_s)
        return self.records

    def _carry_out(self, plan: Plan, start_s: float) -> None:
        state = self.scheduler.state
        noted: list[tuple[tuple[int, int], Work]] = []

        def look() -> None:
            used = self.scheduler.policy.usage()
            self.meter.open(plan, used)
            queues = len(state.waiting), len(state.swapped)
            repeated = self.meter.repeated_reads(plan, used)
            noted.append((queues, work_of(plan, repeated, len(state.running))))

        results = self.runner.run(plan, self.outputs.lengths, look)
        outcome = self.scheduler.commit(plan, 1, results)
        self.runner.follow(outcome, results)
        self.clock.iteration_ended()
        now_s, start_ps = self.clock.now(), round(start_s * PS)
        (queues, work), duration_ps = noted[0], round(now_s * PS) - start_ps
        seen = self.meter.close(plan, Affine(duration_ps, 0, 1), 1, duration_ps, outcome)
        self._answer(outcome, now_s)
        self.records.iterations.append(
            Iteration(start_s, now_s - start_s, *self.runner.timer.stop(), work)
        )
        self.records.recorder.span(start_ps, duration_ps, 1, plan, *queues, seen)

    def _answer(self, outcome: Outcome, now_s: float) -> None:
        now_ps, token_buffers = round(now_s * PS), self.runner.token_buffers
        self.records.recorder.first_tokens(outcome.first_tokens, now_ps)
        for group in outcome.finished:
            request = self.outputs.removed(group.request.request_id)
            outputs = [
                token_buffers.tokens[seq.seq_id][request.prompt_len :] for seq in group.sequences
            ]
            self.records.recorder.served(request, group, now_ps)
            self.records.outputs[request.request_id] = outputs
            self.runner.sampler.end(group)

    def _submit_arrived(
        self, arrivals: Iterator[Request], upcoming: Request | None
    ) -> Request | None:
        """Queue every request that has arrived; returns the first that has not."""
        now_ps = self.clock.now() * PS
        while upcoming is not None and upcoming.arrival_ps <= now_ps:
            self._submit(upcoming)
            upcoming = next(arrivals, None)
        return upcoming

    def _submit(self, request: Request) -> None:
        self.records.recorder.totals.arrived += 1
        longest = min(
            self.max_len, self.scheduler.policy.max_seq_len(request.prompt_len, request.num_seqs)
        )
        if request.final_len > longest:
            reason = (
                f"{request.num_seqs} x {request.final_len} tokens; at most {longest} are possible"
            )
            self.records.recorder.rejected(request, reason)
            return
        self.outputs.arrived(request)
        self.runner.token_buffers.start(self.scheduler.add(request.incoming))

    def _idle(self, plan: Plan, upcoming: Request | None) -> bool:
        """The plan computes nothing: wait until another plan may; False if none will."""
        state, moves = self.scheduler.state, self.runner.moves
        if plan.ops or plan.preempted:
            self._without_tokens(plan)
        if plan.rejected or (plan.preempted and state.running):
            return True
        stuck, pending = bool(state.waiting or state.swapped), bool(moves.pending)
        if stuck and not pending and plan.wake_ps == UNBOUNDED:
            group = (state.swapped or state.waiting)[0]
            name = type(self.scheduler.policy).__name__
            raise PlugInError(
                f"{name}: refuses request {group.request.request_id} although nothing runs"
            )
        if upcoming is None and not stuck:
            return False
        next_ps = min(plan.wake_ps, UNBOUNDED if upcoming is None else upcoming.arrival_ps)
        self.clock.sleep_until(min(next_ps / PS, self.stop_s), moves.ended if pending else None)
        return True

    def _without_tokens(self, plan: Plan) -> None:
        """The plan has begun transfers, or preempted groups that wait for one."""
        self.runner.prepare(plan)
        self.meter.open(plan, self.scheduler.policy.usage())
        self.records.recorder.moved(plan)
        self._answer(self.scheduler.commit(plan, 0, Results()), self.clock.now())

    def _pass_marks(self, now_s: float) -> None:
        while self._marks_s and self._marks_s[-1] <= now_s:
            self.records.recorder.mark(round(self._marks_s.pop() * PS), round(now_s * PS))
