"""Our scheduler and policy on a clock of constant iterations, step by step, and the requests that they serve."""

from collections import deque
from collections.abc import Iterator, Sequence

from testbed.build import Setup
from testbed.core.errors import InputError, PlugInError
from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.experiments.lockstep.comparison import Iteration
from testbed.sched.plan import Plan
from testbed.sim.arrivals import SessionWorkload
from testbed.sim.outputs import Outputs


class Ours:
    """What `testbed run` builds, planned and committed one iteration at a time."""

    name = "testbed"

    def __init__(self, setup: Setup) -> None:
        self.scheduler = setup.scheduler
        self.block_size = int(setup.config.policy.parameters["block_size"])
        self.outputs = Outputs(self.scheduler.state, setup.beams)

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """Every iteration that computes something, until all requests have ended."""
        arriving, now_ps, preempted = deque(requests), 0, list[int]()
        while True:
            while arriving and arriving[0].arrival_ps <= now_ps:
                self._add(arriving.popleft())
            stale = [group for group in self.scheduler.state.ended if group.batch is not None]
            plan = self.scheduler.plan()
            preempted += [group.request.request_id for group in (*plan.preempted, *plan.ended_early)]
            if plan:
                yield Iteration(now_ps, self._tokens(plan, stale), tuple(preempted), self._free_blocks())
                preempted = []
                self.outputs.follow(plan, self.scheduler.commit(plan, 1, self.outputs.results(plan, 1)))
                now_ps += iteration_ps
            elif self.scheduler.state.waiting or plan.rejected:
                raise PlugInError(f"{self.scheduler.state.waiting or plan.rejected}: is refused though nothing runs")
            elif arriving:
                now_ps = arriving[0].arrival_ps
            else:
                return

    def state(self) -> list[str]:
        """Its requests and its pool now."""
        state, policy = self.scheduler.state, self.scheduler.policy
        lines = [f"{self._free_blocks()} blocks are not held"]
        for group in state.running.values():
            seq = group.sequences[0]
            blocks = len(policy.table(seq))
            lines.append(f"running {group.request.request_id}: {seq.num_stored} stored, {blocks} blocks")
        waiting = (f"{group.request.request_id} ({group.prefill_len} tokens)" for group in state.waiting)
        return [*lines, "waiting " + (", ".join(waiting) or "none")]

    def _add(self, request: Request) -> None:
        self.outputs.arrived(request)
        self.scheduler.add(request.incoming)

    def _tokens(self, plan: Plan, stale: list[SequenceGroup]) -> dict[int, int]:
        """Tokens by request; those of `stale` may have taken one step more and have left the batch since."""
        tokens = {seq.request_id: 1 for seq in self.scheduler.state.batch} if plan.decode_seqs else {}
        if plan.decode_seqs > len(tokens):
            tokens |= {group.request.request_id: 1 for group in stale if group not in plan.ended_early}
        for chunk in plan.chunks:
            request_id = chunk.group.request.request_id
            tokens[request_id] = tokens.get(request_id, 0) + chunk.new
        return tokens

    def _free_blocks(self) -> int:
        usage = self.scheduler.policy.usage()
        return (usage.total - usage.held) // self.block_size


def served(setup: Setup) -> tuple[list[Request], int]:
    """The requests that are not turned away on arrival, in order of arrival, and how many are."""
    if isinstance(setup.workload, SessionWorkload):
        raise InputError("arrivals=sessions: iterations are compared on fixed arrivals (another arrivals=)")
    policy, requests = setup.scheduler.policy, list(setup.workload)
    taken = [
        one for one in requests if one.final_len <= min(setup.model.max_len, policy.max_seq_len(one.prompt_len, 1))
    ]
    if not taken:
        raise InputError("the workload: has no request that fits the pool (a larger server.num_blocks)")
    return taken, len(requests) - len(taken)
