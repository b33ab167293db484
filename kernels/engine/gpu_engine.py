"""The loop on a machine: requests come in at their times; plan, run, commit."""

from collections.abc import Iterable, Iterator

from kernels.engine.clock import Clock
from kernels.engine.gpu_timer import HostTimer
from kernels.engine.records import Iteration, Records
from kernels.engine.runner import Runner
from testbed.core.errors import PlugInError
from testbed.core.request import PS, Request
from testbed.cost.model import Affine, Work
from testbed.memory.policy import MemoryPolicy
from testbed.sched.beams import SyntheticBeams
from testbed.sched.plan import Outcome, Plan, work_of
from testbed.sched.scheduler import Scheduler
from testbed.sim.meter import Meter, PlainMeter, SpanMeter
from testbed.sim.outputs import Outputs

ONE_STEP = Affine(1, 0, 1)  # a meter asks for prices only where it sees several iterations at once


class Engine:
    """Serves requests by the plans of a scheduler, which knows nothing of it.

    window_s averages batch and memory between two times and ends a run at the second: no plan begins after it.
    timer splits each iteration's time.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Clock, timer: HostTimer, max_len: int,
        window_s: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.timer = timer
        self.max_len = max_len
        self.stop_s = window_s[1] if window_s else float("inf")
        self.records = Records(beams=runner.speaker.history)
        self.outputs = Outputs(scheduler.residents, SyntheticBeams())  # never asked for parents: the model says them
        self.meter = meter_of(scheduler, self.outputs)
        self._marks_s = sorted(window_s or (), reverse=True)
        for reader in (scheduler, scheduler.policy, scheduler.residents.preemption):
            if reader.reads_output_len:
                reader.foresee(self.outputs.lengths)

    def serve(self, requests: Iterable[Request]) -> Records:
        """Serve requests, in order of arrival, until all have ended or the window is over."""
        requests = [r for r in requests if r.arrival_ps < self.stop_s * PS]
        self.runner.streams.prepare(r.incoming for r in requests)
        arrivals = iter(requests)
        self.clock.restart()
        upcoming = self._submit_arrived(arrivals, next(arrivals, None))
        while (start_s := self.clock.now()) < self.stop_s:
            self._pass_marks(start_s)
            self.timer.start()
            plan = self.scheduler.plan()
            for group in plan.rejected:
                request = self.outputs.left(group.request.request_id)
                self.records.recorder.rejected(request, "the memory policy can never hold it")
            if plan:
                self._carry_out(plan, start_s)
            elif not plan.rejected and not self._wait(upcoming):
                break
            upcoming = self._submit_arrived(arrivals, upcoming)
        self.records.recorder.end_ps = round(start_s * PS)
        self.records.recorder.settle()
        self._pass_marks(start_s)
        return self.records

    def _carry_out(self, plan: Plan, start_s: float) -> None:
        residents = self.scheduler.residents
        noted: list[tuple[tuple[int, int], Work]] = []

        def look() -> None:
            used = self.scheduler.policy.usage()
            self.meter.open(plan, used)
            queues = len(residents.waiting), len(residents.swapped)
            noted.append((queues, work_of(plan, used.saved, len(residents.running))))

        results = self.runner.run(plan, self.outputs.lengths, look)
        outcome = self.scheduler.commit(plan, 1, results)
        self.runner.follow(outcome, results)
        self.clock.iteration_ended()
        now_s = self.clock.now()
        (queues, work), duration_ps = noted[0], round(now_s * PS) - round(start_s * PS)
        seen = self.meter.close(plan, ONE_STEP, 1, duration_ps, outcome)
        self._answer(outcome, now_s)
        split = self.timer.stop()
        self.records.iterated(Iteration(start_s, now_s - start_s, *split, work), plan, queues, seen)

    def _answer(self, outcome: Outcome, now_s: float) -> None:
        self.records.first_tokens(outcome, now_s)
        streams = self.runner.streams
        for group in outcome.finished:
            request = self.outputs.left(group.request.request_id)
            outputs = [streams.tokens[seq.seq_id][request.prompt_len :] for seq in group.sequences]
            self.records.served(request, group, now_s, outputs)
            streams.end(group)
            self.runner.speaker.end(group)

    def _submit_arrived(self, arrivals: Iterator[Request], upcoming: Request | None) -> Request | None:
        """Queue every request whose time has come; returns the first whose time has not."""
        now_ps = self.clock.now() * PS
        while upcoming is not None and upcoming.arrival_ps <= now_ps:
            self._submit(upcoming)
            upcoming = next(arrivals, None)
        return upcoming

    def _submit(self, request: Request) -> None:
        self.records.recorder.totals.arrived += 1
        longest = min(self.max_len, self.scheduler.policy.longest(request.prompt_len, request.num_seqs))
        if request.final_len > longest:
            reason = f"{request.num_seqs} x {request.final_len} tokens; at most {longest} are possible"
            self.records.recorder.rejected(request, reason)
            return
        self.outputs.arrived(request)
        self.runner.streams.start(self.scheduler.add(request.incoming))

    def _wait(self, upcoming: Request | None) -> bool:
        """Wait for the next request; False if none will come."""
        residents = self.scheduler.residents
        if residents.waiting or residents.swapped:
            group = (residents.swapped or residents.waiting)[0]
            name = type(self.scheduler.policy).__name__
            raise PlugInError(f"{name} refuses request {group.request.request_id} though nothing runs")
        if upcoming is None:
            return False
        self.clock.sleep_until(min(upcoming.arrival_ps / PS, self.stop_s))
        return True

    def _pass_marks(self, now_s: float) -> None:
        while self._marks_s and self._marks_s[-1] <= now_s:
            self.records.recorder.mark(round(self._marks_s.pop() * PS), round(now_s * PS))


def meter_of(scheduler: Scheduler, outputs: Outputs) -> Meter:
    """The simulator's own meter: by footprints where the policy says them, else by walking every table."""
    says_footprints = type(scheduler.policy).footprint is not MemoryPolicy.footprint
    return (SpanMeter if says_footprints else PlainMeter)(scheduler, outputs)
