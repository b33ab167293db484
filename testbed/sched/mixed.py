"""The 2023 system's scheduling (section 4.3): decodes and whole prompts share an iteration."""

from testbed.memory.policy import MemoryPolicy
from testbed.sched.decoding import decode, resume
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.prompts import WholePrompts
from testbed.sched.scheduler import Scheduler


class MixedPrefill(Scheduler):
    """At most max_num_batched_tokens tokens and max_num_seqs resident sequences in an iteration.

    An item larger than the token budget runs alone, ahead of the decodes.
    """

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        super().__init__(policy, preemption)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prompts = WholePrompts(self.residents, max_num_seqs)

    def plan(self) -> Plan:
        residents, prompts = self.residents, self.prompts
        plan = residents.new_plan()
        item = 0
        if residents.waiting or prompts.partial is not None:
            self.choose_order(residents.waiting)
            item = prompts.next_item()
            if item > self.max_num_batched_tokens:
                prompts.fill(plan, self.max_num_batched_tokens)
        if not plan.chunks:
            decode(residents, plan)
            if residents.swapped:
                resume(residents, plan)
            if item and not plan.took_room:
                prompts.fill(plan, self.max_num_batched_tokens - plan.decode_seqs)
        self.offer(plan, prompts)
        return plan
