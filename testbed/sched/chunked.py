"""Chunked prefill (Sarathi): decodes first; what is left of the token budget goes to chunks of prompts."""

from testbed.memory.policy import MemoryPolicy
from testbed.sched.decoding import decode, resume
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.prompts import PromptChunks
from testbed.sched.scheduler import Scheduler


class ChunkedPrefill(Scheduler):
    """At most max_num_batched_tokens tokens and max_num_seqs resident sequences in an iteration.

    One prompt at a time is unfinished.
    """

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        super().__init__(policy, preemption)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prompts = PromptChunks(self.residents, max_num_seqs)

    def plan(self) -> Plan:
        plan = self.residents.new_plan()
        self.choose_order(self.residents.waiting)
        decode(self.residents, plan)
        resume(self.residents, plan)
        if not plan.took_room:
            self.prompts.fill(plan, self.max_num_batched_tokens - plan.decode_seqs)
        self.offer(plan, self.prompts)
        return plan
