"""Chunked prefill (Sarathi): decodes first; what is left of the token budget goes to chunks of
prompts.
"""

from typing import ClassVar

from testbed.sched.plan import Plan
from testbed.sched.scheduler import IterationLevel
from testbed.sched.token_budget import PrefillChunks, Prefills


class ChunkedPrefill(IterationLevel):
    """At most max_num_batched_tokens tokens and max_num_seqs running sequences; one prompt at a
    time is unfinished.
    """

    prefills: ClassVar[type[Prefills]] = PrefillChunks

    has_steady_plans: ClassVar[bool] = True
    admits_after_decodes: ClassVar[bool] = True

    def plan(self) -> Plan:
        plan = self.new_plan()
        self.decode(plan)
        if self.state.swapped:
            self.swap_in(plan)
        self.prompts.schedule_prefills(plan)
        self.enable_fast_forward(plan)
        return plan
