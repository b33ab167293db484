"""Three answers to "when do prompts run?": apart from decodes, with them whole, or with them in chunks."""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Refusal
from testbed.sched.iteration import IterationScheduler
from testbed.sched.plan import Chunk, Plan


class SeparatePrefill(IterationScheduler):
    """An iteration is either prompts or decodes, and prompts go first."""

    def plan(self) -> Plan:
        plan = Plan()
        if self.waiting or self.partial:
            self._prefill(plan, self.max_num_batched_tokens)
        if not plan.chunks:
            self._decode(plan)
            if self.swapped:
                self.resume(plan)
        self._complete(plan)
        return plan


class MixedPrefill(IterationScheduler):
    """The 2023 system (section 4.3): decodes and whole prompts share an iteration.

    An item larger than the token budget runs alone.
    """

    def plan(self) -> Plan:
        plan = Plan()
        prompts = self.waiting or self.partial
        if prompts and self._next_item() > self.max_num_batched_tokens:
            self._prefill(plan, self.max_num_batched_tokens)
        if not plan.chunks:
            self._decode(plan)
            if self.swapped:
                self.resume(plan)
            if prompts and not plan.preempted:
                self._prefill(plan, self.max_num_batched_tokens - plan.decode_seqs)
        self._complete(plan)
        return plan

    def _next_item(self) -> int:
        """Tokens of the item that the prompt phase would compute next."""
        if self.partial and self.partial.todo:
            return self.partial.todo[0][0]
        return self.waiting[0].prefill_len if self.waiting else 0


class ChunkedPrefill(IterationScheduler):
    """Decodes first; what is left of the token budget goes to chunks of prompts, one unfinished prompt at a time."""

    def plan(self) -> Plan:
        plan = Plan()
        self._decode(plan)
        self.resume(plan)
        if not plan.preempted:
            self._prefill(plan, self.max_num_batched_tokens - plan.decode_seqs)
        self._complete(plan)
        return plan

    def _first_tokens(self, group: SequenceGroup, budget: int) -> int:
        return min(group.prefill_len, max(budget, 1))

    def _take(self, plan: Plan, group: SequenceGroup, budget: int) -> int:
        while group.todo and budget > 0:
            left, stored = group.todo.pop(0)
            new = min(left, budget)
            if not self._make_room(group, stored + new, plan):
                new = min(new, group.num_tokens - stored)  # what there is room for already
                if new <= 0:
                    group.todo.insert(0, (left, stored))
                    break
            if new < left:
                group.todo.insert(0, (left - new, stored + new))
            plan.chunks.append(Chunk(group, new, stored, not group.todo))
            budget -= new
        self.partial = group if group.todo else None
        return budget

    def _make_room(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> bool:
        """See to it that the group's sequences have room for num_tokens tokens."""
        missing = num_tokens - group.num_tokens
        if missing <= 0:
            return True
        answer = self.policy.extend(group.resident, missing)
        if isinstance(answer, Refusal):
            return False
        self.order(answer.ops, plan)
        group.num_tokens = num_tokens
        return True
