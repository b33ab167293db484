"""Request-level batching (section 6.1, FasterTransformer): a batch starts and ends together."""

from typing import ClassVar

from testbed.core.errors import InputError
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import GRANTED, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import Scheduler


class StaticBatch(Scheduler):
    """Takes up to max_batch_size of the earliest requests and pads their prompts and outputs to the longest of each.

    A batch ends before its longest prompt and longest output together would exceed max_padded_len tokens, and so reads
    true lengths. Padding is paid in time: every sequence passes through every iteration until the last has its output,
    and all are answered then. Nothing is ever preempted, so the policy must reserve whole outputs at admission.
    """

    reads_output_len: ClassVar[bool] = True

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, max_batch_size: int, max_padded_len: int
    ) -> None:
        super().__init__(policy, preemption)
        self.max_batch_size = max_batch_size
        self.max_padded_len = max_padded_len
        self._padded_len = 0

    def plan(self) -> Plan:
        if self.state.running:
            return self._decode()
        plan = self.new_plan()
        waiting = self.state.waiting
        while waiting and self._takes(waiting[0], plan):
            group = waiting[0]
            answer = self.state.admit(group, group.prefill_len, plan)
            if answer in (Refusal.LATER, Refusal.LOADING):
                break
            if answer is not Refusal.NEVER:
                self.state.schedule_chunk(group, group.todo[0].new, plan)
        self._padded_len = max((chunk.num_stored + chunk.new for chunk in plan.chunks), default=0)
        longest = max((chunk.new for chunk in plan.chunks), default=0)
        plan.chunks = [chunk._replace(padding=longest - chunk.new) for chunk in plan.chunks]
        return plan

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        state, grown = self.state, GRANTED
        for chunk in plan.chunks:
            chunk.seq.num_stored = chunk.num_stored + chunk.new
            chunk.group.generate()
            if chunk.group.request.request_id not in results.ended:
                state.fork(chunk.group)
                state.join_batch(chunk.group)
        if plan.decode_seqs:
            grown = state.extend_promised(steps - 1) if steps > 1 else grown
            state.batch.advance(steps)
            self._padded_len += steps
            for request_id in results.ended:
                state.leave_batch(state.running[request_id])
        finished = [] if state.batch.sequences else list(state.running.values())
        for group in finished:
            state.release(group, SequenceStatus.FINISHED)
        return Outcome([chunk.group for chunk in plan.chunks], finished, grown)

    def _takes(self, group: SequenceGroup, plan: Plan) -> bool:
        batch = [*(chunk.group.request for chunk in plan.chunks), group.request]
        padded_len = max(r.prompt_len for r in batch) + max(self.output_len[r.request_id] for r in batch)
        return not plan.chunks or (len(batch) <= self.max_batch_size and padded_len <= self.max_padded_len)

    def _decode(self) -> Plan:
        batch, num_seqs = self.state.batch, self.state.num_seqs
        answer = self.policy.extend(batch, 1)
        if isinstance(answer, Refusal):
            name = type(self.policy).__name__
            raise InputError(f"static batching never preempts, and {name} refused (choose a contiguous policy)")
        batch.extend(1)
        plan = self.state.new_plan()
        self.state.order(answer.ops, plan)
        plan.decode_seqs, plan.decode_max_context = num_seqs, self._padded_len + 1
        plan.decode_context = num_seqs * plan.decode_max_context
        plan.guaranteed_steps = self.policy.guaranteed_steps(batch)
        return plan
