"""The 2023 system's scheduling (section 4.3): decodes and whole prompts share an iteration."""

from typing import ClassVar

from testbed.sched.plan import Plan
from testbed.sched.scheduler import IterationLevel
from testbed.sched.token_budget import GroupLimit, Prefills


class MixedPrefill(IterationLevel):
    """At most max_num_batched_tokens tokens and max_num_seqs running sequences in an iteration.

    An item larger than the token budget runs alone, ahead of the decodes. A smaller one waits until
    the decodes leave enough of the budget. vLLM 0.2 therefore refuses a budget below the model's
    longest sequence.
    """

    has_steady_plans: ClassVar[bool] = True
    admits_after_decodes: ClassVar[bool] = True

    def note(self, max_len: int) -> str | None:
        tokens = self.limits.max_num_batched_tokens
        if max_len <= tokens:
            return None
        return (
            f"a prompt of almost {tokens:,} tokens waits until the running requests leave enough "
            f"of an iteration (scheduler.max_num_batched_tokens={max_len}, as vLLM 0.2 requires, "
            "or scheduler=chunked)"
        )

    def plan(self) -> Plan:
        plan = self.new_plan()
        if self.prompts.next_exceeds_budget():
            self.prompts.schedule_prefills(plan)
        if not plan.chunks:
            self.decode(plan)
            if self.state.swapped:
                self.swap_in(plan)
            self.prompts.schedule_prefills(plan)
        self.enable_fast_forward(plan)
        return plan


class Mixed2023(MixedPrefill):
    """As MixedPrefill, but max_num_seqs limits the sum of the number of groups and the sequences of
    the next one.
    """

    has_steady_plans: ClassVar[bool] = True
    admits_after_decodes: ClassVar[bool] = True
    prefills: ClassVar[type[Prefills]] = GroupLimit
