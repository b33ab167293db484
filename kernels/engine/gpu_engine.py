"""The loop on a machine: requests come in at their times; plan, run, commit."""

from collections.abc import Iterable, Iterator

from kernels.engine.clock import Clock
from kernels.engine.gpu_timer import HostTimer
from kernels.engine.records import Iteration, Records
from kernels.engine.runner import Runner
from testbed.core.errors import PlugInError
from testbed.core.request import PS, Request
from testbed.core.slots import Usage
from testbed.cost.model import Work
from testbed.sched.plan import Outcome, Plan, work_of
from testbed.sched.scheduler import Scheduler


class Engine:
    """Serves requests by the plans of a scheduler, which knows nothing of it.

    stop_s ends a run early: no plan begins after that time. timer splits each iteration's time.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Clock, timer: HostTimer, max_len: int,
        stop_s: float = float("inf"),
    ) -> None:  # fmt: skip
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.timer = timer
        self.max_len = max_len
        self.stop_s = stop_s
        self.records = Records(beams=runner.speaker.history)
        self.lengths: dict[int, int] = {}
        self._requests: dict[int, Request] = {}
        for reader in (scheduler, scheduler.policy, scheduler.residents.preemption):
            if reader.reads_output_len:
                reader.foresee(self.lengths)

    def serve(self, requests: Iterable[Request]) -> Records:
        """Serve requests, in order of arrival, until all have ended or stop_s has passed."""
        arrivals = iter(requests)
        upcoming = self._submit_arrived(arrivals, next(arrivals, None))
        while self.clock.now() < self.stop_s:
            self.timer.start()
            start_s = self.clock.now()
            plan = self.scheduler.plan()
            for group in plan.rejected:
                self._forget(group.request.request_id, "the memory policy can never hold it")
            if plan:
                self._carry_out(plan, start_s)
            elif not plan.rejected and not self._wait(upcoming):
                break
            upcoming = self._submit_arrived(arrivals, upcoming)
        return self.records

    def _carry_out(self, plan: Plan, start_s: float) -> None:
        residents = self.scheduler.residents
        seen: list[tuple[int | Usage | Work, ...]] = []

        def look() -> None:
            usage = self.scheduler.policy.usage()
            counts = len(residents.waiting), len(residents.swapped), len(residents.running), len(plan.preempted)
            seen.append((*counts, usage, work_of(plan, usage.saved, len(residents.running))))

        results = self.runner.run(plan, self.lengths, look)
        outcome = self.scheduler.commit(plan, 1, results)
        self.runner.follow(outcome, results)
        self.clock.iteration_ended()
        now_s = self.clock.now()
        self._answer(outcome, now_s)
        split = self.timer.stop()
        self.records.iterations.append(Iteration(start_s, now_s - start_s, *split, *seen[0]))

    def _answer(self, outcome: Outcome, now_s: float) -> None:
        for group in outcome.first_tokens:
            self.records.first_token(group.request.request_id, now_s)
        streams = self.runner.streams
        for group in outcome.finished:
            request = self._requests.pop(group.request.request_id)
            del self.lengths[request.request_id]
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
        longest = min(self.max_len, self.scheduler.policy.longest(request.prompt_len, request.num_seqs))
        if request.final_len > longest:
            reason = f"{request.num_seqs} x {request.final_len} tokens; at most {longest} are possible"
            self.records.rejected(request, reason)
            return
        self._requests[request.request_id] = request
        self.lengths[request.request_id] = request.output_len
        self.runner.streams.start(self.scheduler.add(request.incoming))

    def _forget(self, request_id: int, reason: str) -> None:
        del self.lengths[request_id]
        self.records.rejected(self._requests.pop(request_id), reason)

    def _wait(self, upcoming: Request | None) -> bool:
        """Wait for the next request; False if none will come."""
        residents = self.scheduler.residents
        if residents.waiting or residents.swapped:
            group = (residents.swapped or residents.waiting)[0]
            name = type(self.scheduler.policy).__name__
            raise PlugInError(f"{name} refuses request {group.request.request_id} though nothing runs")
        if upcoming is None:
            return False
        self.clock.sleep_until(upcoming.arrival_ps / PS)
        return True
