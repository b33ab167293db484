"""A complete scheduler outside the package: prompts are computed only while few sequences decode.

Decodes that wait for prompts have long gaps between tokens; prompts that wait for decodes have a
long time to the first token. `most_decoding` chooses between the two.
"""

from typing import Any

from testbed.core.units import PositiveCount
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import IterationLevel


class DecodesFirst(IterationLevel):
    """An iteration computes prompts if at most `most_decoding` sequences decode, and else decodes.

    The limits max_num_batched_tokens and max_num_seqs are those of every scheduler here
    (experiments/conf/limits.yaml), which is why they are handed on by name.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        most_decoding: PositiveCount = 8,
        **limits: Any,
    ) -> None:
        super().__init__(policy, preemption, **limits)
        self.most_decoding = most_decoding

    def plan(self) -> Plan:
        """The next iteration: queues and running sequences are in `self.state`."""
        plan = self.new_plan()
        if len(self.state.batch) <= self.most_decoding:
            self.prompts.schedule_prefills(plan)  # asks the policy to admit, in order of service
        if not plan.chunks:
            self.decode(plan)  # one step of the batch; preempts if the policy refuses
            self.swap_in(plan)
        if not plan:  # nothing decodes, and swapped groups did not fit: prompts may
            self.prompts.schedule_prefills(plan)
        self.enable_fast_forward(plan)  # further steps like this one, as the policy promises
        return plan
