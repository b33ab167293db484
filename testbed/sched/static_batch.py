"""Request-level batching (section 6.1, FasterTransformer): a batch starts and ends together."""

from testbed.core.errors import InputError
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import NO_GROWTH, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Chunk, Outcome, Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.residency import ResidentScheduler


class StaticBatch(ResidentScheduler):
    """Takes up to max_batch_size of the earliest requests and pads their prompts and outputs to the longest of each.

    A batch ends before the first request with which the longest prompt and the longest output together would be more
    than max_padded_len tokens: the model has no more positions. Padding is paid in time: every sequence passes through
    every iteration until the last one has its output, and the whole batch is answered then. Nothing is ever preempted,
    so the policy must reserve whole outputs at admission.
    """

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, max_batch_size: int = 8, max_padded_len: int = 2048
    ) -> None:
        super().__init__(policy, preemption)
        self.max_batch_size = max_batch_size
        self.max_padded_len = max_padded_len
        self._padded_len = 0

    def plan(self) -> Plan:
        if self.running:
            return self._decode()
        plan = Plan()
        while self.waiting and self._takes(self.waiting[0], plan) and self._admit_head(plan):
            pass
        self._padded_len = max((chunk.new for chunk in plan.chunks), default=0)
        plan.chunks = [chunk._replace(padding=self._padded_len - chunk.new) for chunk in plan.chunks]
        return plan

    def commit(self, plan: Plan, steps: int) -> Outcome:
        growth = NO_GROWTH
        for group in (chunk.group for chunk in plan.chunks):
            group.num_generated += 1
            self.fork(group)
            self.join(group)
        if plan.decode_seqs:
            growth = self.extend_promised(steps - 1).growth if steps > 1 else growth
            self.batch.advance(steps)
            self._padded_len += steps
        for group in self.pop_complete():
            self.leave(group)
        return Outcome([chunk.group for chunk in plan.chunks], self._end() if not self.batch else [], growth)

    def _takes(self, group: SequenceGroup, plan: Plan) -> bool:
        """Whether the batch may grow by `group`; the first of a batch always runs."""
        batch = [*(chunk.group.request for chunk in plan.chunks), group.request]
        padded_len = max(r.prompt_len for r in batch) + max(r.output_len for r in batch)
        return not plan.chunks or (len(batch) <= self.max_batch_size and padded_len <= self.max_padded_len)

    def _admit_head(self, plan: Plan) -> bool:
        group = self.waiting[0]
        answer = self.admit_group(group, group.prefill_len, plan)
        if answer is Refusal.LATER:
            return False
        self.waiting.popleft()
        if isinstance(answer, Refusal):
            plan.rejected.append(group)
        else:
            self.arrive(group, SequenceStatus.PREFILLING)
            plan.chunks.append(Chunk(group, group.prefill_len, 0, True))
        return True

    def _decode(self) -> Plan:
        if isinstance(self.policy.extend(self.batch, 1), Refusal):
            name = type(self.policy).__name__
            raise InputError(f"static batching never preempts, but {name} ran out of room: choose a contiguous policy")
        plan = Plan(decode_seqs=self.num_seqs, decode_context=self.num_seqs * (self._padded_len + 1))
        plan.ops, self.copies = self.copies, []
        plan.horizon = self.policy.horizon(self.batch, self.steps_to_finish() - 1)
        return plan

    def _end(self) -> list[SequenceGroup]:
        """The whole batch is answered."""
        finished = list(self.running.values())
        for group in finished:
            self.finish(group)
        return finished
