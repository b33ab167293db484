"""Iteration-level scheduling (Orca): an iteration is either prompts or decodes, and prompts go first."""

from testbed.memory.policy import MemoryPolicy
from testbed.sched.decoding import decode, resume
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.prompts import WholePrompts
from testbed.sched.scheduler import Scheduler


class SeparatePrefill(Scheduler):
    """At most max_num_batched_tokens tokens and max_num_seqs resident sequences in an iteration."""

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        super().__init__(policy, preemption)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prompts = WholePrompts(self.residents, max_num_seqs)

    def plan(self) -> Plan:
        plan = self.residents.new_plan()
        self.choose_order(self.residents.waiting)
        self.prompts.fill(plan, self.max_num_batched_tokens)
        if not plan.chunks:
            decode(self.residents, plan)
            resume(self.residents, plan)
        self.offer(plan, self.prompts)
        return plan
