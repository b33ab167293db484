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

    A batch ends before the first request with which the longest prompt and the longest output together would be more
    than max_padded_len tokens: the model has no more positions. Who asks for a batch says how long its outputs may be,
    so this scheduler reads true lengths. Padding is paid in time: every sequence passes through every iteration until
    the last one has its output, and the whole batch is answered then. Nothing is ever preempted, so the policy must
    reserve whole outputs at admission.
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
        if self.residents.running:
            return self._decode()
        plan = self.residents.new_plan()
        waiting = self.residents.waiting
        self.choose_order(waiting)
        while waiting and self._takes(waiting[0], plan) and self._admit_head(plan):
            pass
        self._padded_len = max((chunk.new for chunk in plan.chunks), default=0)
        plan.chunks = [chunk._replace(padding=self._padded_len - chunk.new) for chunk in plan.chunks]
        return plan

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        residents, grown = self.residents, GRANTED
        for chunk in plan.chunks:
            chunk.seq.stored = chunk.stored + chunk.new
            chunk.group.generate()
            if chunk.group.request.request_id not in results.ended:
                residents.fork(chunk.group)
                residents.join(chunk.group)
        if plan.decode_seqs:
            grown = residents.extend_promised(steps - 1) if steps > 1 else grown
            residents.batch.advance(steps)
            self._padded_len += steps
            for request_id in results.ended:
                residents.leave(residents.running[request_id])
        return Outcome([chunk.group for chunk in plan.chunks], [] if residents.batch.sequences else self._end(), grown)

    def _takes(self, group: SequenceGroup, plan: Plan) -> bool:
        """Whether the batch may grow by `group`; the first of a batch always runs."""
        batch = [*(chunk.group.request for chunk in plan.chunks), group.request]
        padded_len = max(r.prompt_len for r in batch) + max(self.output_len[r.request_id] for r in batch)
        return not plan.chunks or (len(batch) <= self.max_batch_size and padded_len <= self.max_padded_len)

    def _admit_head(self, plan: Plan) -> bool:
        group = self.residents.waiting[0]
        answer = self.residents.admit(group, group.prefill_len, plan)
        if answer is Refusal.LATER:
            return False
        self.residents.waiting.popleft()
        if answer is Refusal.NEVER:
            plan.rejected.append(group)
        else:
            self.residents.place(group, group.todo[0].new, plan)
        return True

    def _decode(self) -> Plan:
        batch, num_seqs = self.residents.batch, self.residents.num_seqs
        answer = self.policy.extend(batch, 1)
        if isinstance(answer, Refusal):
            name = type(self.policy).__name__
            raise InputError(f"static batching never preempts, but {name} ran out of room: choose a contiguous policy")
        batch.extend(1)
        plan = self.residents.new_plan()
        self.residents.order(answer.ops, plan)
        plan.decode_seqs, plan.decode_longest = num_seqs, self._padded_len + 1
        plan.decode_context = num_seqs * plan.decode_longest
        plan.horizon = self.policy.horizon(batch)
        return plan

    def _end(self) -> list[SequenceGroup]:
        """The whole batch is answered."""
        finished = list(self.residents.running.values())
        for group in finished:
            self.residents.release(group, SequenceStatus.FINISHED)
        return finished
