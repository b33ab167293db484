"""Mixed prefill with the 2023 system's limit on sequences, which counts groups (the artifact's scheduler)."""

from testbed.core.sequence import SequenceGroup
from testbed.memory.policy import MemoryPolicy
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import PreemptionRule
from testbed.sched.prompts import WholePrompts


class GroupLimit(WholePrompts):
    """The groups that are resident and the sequences of the next one together stay within the limit."""

    def is_full_with(self, group: SequenceGroup) -> bool:
        running = self.residents.running
        return bool(running) and len(running) + len(group.sequences) > self.max_num_seqs


class Mixed2023(MixedPrefill):
    """As MixedPrefill, but max_num_seqs is held against the number of groups and the sequences of the next one."""

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        super().__init__(policy, preemption, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs)
        self.prompts = GroupLimit(self.residents, max_num_seqs)
