"""Three answers to "when do prompts run?": apart from decodes, with them whole, or with them in chunks."""

from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import Refusal
from testbed.sched.iteration import IterationScheduler
from testbed.sched.plan import Chunk, Plan


class SeparatePrefill(IterationScheduler):
    """The 2023 system: an iteration is either prompts or decodes, and prompts go first."""

    def plan(self) -> Plan:
        plan = Plan()
        if not self.swapped:
            self._admit(plan, self.max_num_batched_tokens)
        if not plan.chunks:
            self._decode(plan)
            self.resume(plan)
            self._open_window(plan)
        return plan


class MixedPrefill(IterationScheduler):
    """Decodes and whole prompts share an iteration; a prompt larger than the budget runs alone."""

    def plan(self) -> Plan:
        plan = Plan()
        if self.waiting and not self.swapped and self.waiting[0].prefill_len > self.max_num_batched_tokens:
            self._admit(plan, self.max_num_batched_tokens)
        if not plan.chunks:
            self._decode(plan)
            self.resume(plan)
            if not self.swapped and not plan.preempted:
                self._admit(plan, self.max_num_batched_tokens - len(self.batch))
            self._open_window(plan)
        return plan


class ChunkedPrefill(IterationScheduler):
    """Decodes first; what is left of the token budget goes to chunks of prompts, one unfinished prompt at a time."""

    partial: SequenceGroup | None = None

    def plan(self) -> Plan:
        plan = Plan()
        self._decode(plan)
        self.resume(plan)
        if not plan.preempted:
            budget = self._continue(plan, self.max_num_batched_tokens - len(self.batch))
            if not self.swapped:
                self._admit_chunks(plan, budget)
        self._open_window(plan)
        return plan

    def _continue(self, plan: Plan, budget: int) -> int:
        """The next chunk of the unfinished prompt, as far as there is room; the budget that is left for others."""
        group = self.partial
        if group is None or group.status is not SequenceStatus.PREFILLING:
            return budget
        new = min(group.prefill_len - group.num_tokens, budget)
        if new < 1 or not self._extend_prompt(group, new, plan):
            return 0
        chunk = Chunk(group, new, group.num_tokens, group.num_tokens + new == group.prefill_len)
        plan.chunks.append(chunk)
        return budget - new if chunk.last else 0

    def _extend_prompt(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> bool:
        sequences = group.sequences[:1] if self.policy.shares else group.sequences
        answer = self.policy.extend(sequences, num_tokens)
        if isinstance(answer, Refusal):
            return False
        if answer.ops:
            plan.ops.append(answer.ops)
        return True

    def _admit_chunks(self, plan: Plan, budget: int) -> None:
        while self.waiting and budget > 0 and not self.refused:
            used = self._admit_head(plan, min(self.waiting[0].prefill_len, budget))
            if used is None:
                return
            budget -= used
            if plan.chunks and not plan.chunks[-1].last:
                self.partial = plan.chunks[-1].group
                return
