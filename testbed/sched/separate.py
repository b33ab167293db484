"""Iteration-level scheduling (Orca): an iteration is either prompts or decodes, and prompts go
first.
"""

from typing import ClassVar

from testbed.sched.plan import Plan
from testbed.sched.scheduler import IterationLevel


class SeparatePrefill(IterationLevel):
    """At most max_num_batched_tokens tokens and max_num_seqs running sequences in an iteration."""

    has_steady_plans: ClassVar[bool] = True

    def plan(self) -> Plan:
        plan = self.new_plan()
        self.prompts.schedule_prefills(plan)
        if not plan.chunks:
            self.decode(plan)
            self.swap_in(plan)
        self.enable_fast_forward(plan)
        return plan
