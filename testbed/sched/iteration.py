"""Iteration-level scheduling, first come first served (Orca; section 4.5): prefill separate, mixed or chunked."""

from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import NO_GROWTH, NO_OPS, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.beams import BeamModel, SyntheticBeams
from testbed.sched.plan import Chunk, Outcome, Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.residency import ResidentScheduler


class IterationScheduler(ResidentScheduler):
    """Limits: at most max_num_batched_tokens tokens and max_num_seqs resident sequences in an iteration.

    An item larger than the token budget runs alone in an iteration. `partial` is the one group, if any, whose prompt
    phase is under way and not over after this plan.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        max_num_batched_tokens: int = 2560,
        max_num_seqs: int = 256,
        beams: BeamModel | None = None,
    ) -> None:
        super().__init__(policy, preemption)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.partial: SequenceGroup | None = None
        self.beams = beams or SyntheticBeams()

    def commit(self, plan: Plan, steps: int) -> Outcome:
        finished: list[SequenceGroup] = []
        growth = NO_GROWTH
        if plan.decode_seqs:
            if steps > 1:
                growth = self.extend_promised(steps - 1).growth
            self.batch.advance(steps)
            for group in self.pop_complete():
                self.leave(group)
                self.finish(group)
                finished.append(group)
            for group in self.beam_groups.values():
                self._choose_parents(group, group.num_generated + self.batch.steps - group.joined_at)
        first_tokens = [chunk.group for chunk in plan.chunks if chunk.last]
        for group in first_tokens:
            self._prefilled(group, finished)
        for group in plan.resumed:
            self._resumed(group, finished)
        if self.policy.caches_prefixes and (plan.chunks or plan.resumed):
            self.room_freed()
        return Outcome(first_tokens, finished, growth)

    def _choose_parents(self, group: SequenceGroup, num_generated: int) -> None:
        """A beam group has new candidates: those that did not survive go on from others' tokens."""
        for parent, child in group.replacements[num_generated - 2]:
            ops = self.policy.fork(group.sequences[parent], group.sequences[child])
            if ops:
                self.copies.append(ops)

    def _resumed(self, group: SequenceGroup, finished: list[SequenceGroup]) -> None:
        """The group is back from the host, and has taken this step if it had room for its newest token."""
        if group.num_tokens == group.prefill_len:
            group.num_generated += 1
            if group.num_generated == group.request.output_len:
                self.finish(group)
                finished.append(group)
                return
            if group.request.beam:
                self._choose_parents(group, group.num_generated)
        self.join(group)

    def _prefilled(self, group: SequenceGroup, finished: list[SequenceGroup]) -> None:
        """The prompt phase of the group is over, and has brought its next output token."""
        group.num_generated += 1
        if group.num_generated == group.request.output_len:
            self.finish(group)
            finished.append(group)
            return
        if len(group.sequences) > 1 and group.num_generated == 1:
            self.fork(group)
            if group.request.beam:
                group.replacements = self.beams.replacements(group.request)
        self.join(group)

    def _decode(self, plan: Plan) -> None:
        """Extend the batch by one step, preempting until it fits."""
        batch = self.batch
        while num_seqs := len(batch.sequences):
            answer = self.policy.extend(batch, 1)
            if not isinstance(answer, Refusal):
                plan.decode_seqs = num_seqs
                plan.decode_context = batch.context + num_seqs
                if answer.ops is not NO_OPS:
                    self.order(answer.ops, plan)
                return
            self.preempt(plan)

    def _prefill(self, plan: Plan, budget: int) -> None:
        """Go on with the unfinished prompt phase, then admit from the head of the queue, within the token budget."""
        if self.partial:
            budget = self._take(plan, self.partial, budget)
        while self.waiting and not self.partial and not self.refused and not self.swapped:
            group = self.waiting[0]
            num_tokens = self._first_tokens(group, budget)
            if (num_tokens > budget and not plan.is_idle) or self.is_full_with(group):
                return
            if self._admit_head(plan, num_tokens):
                budget = self._take(plan, group, budget)

    def _first_tokens(self, group: SequenceGroup, budget: int) -> int:
        """Tokens that the group needs room for when it is admitted."""
        return group.prefill_len

    def _admit_head(self, plan: Plan, num_tokens: int) -> bool:
        """Give the head of the queue room for its first num_tokens tokens, if there is any."""
        group = self.waiting[0]
        answer = self.admit_group(group, num_tokens, plan)
        if answer is Refusal.LATER:
            self.refused = True
            return False
        self.waiting.popleft()
        if isinstance(answer, Refusal):
            plan.rejected.append(group)
            return False
        self.arrive(group, SequenceStatus.PREFILLING)
        return True

    def _take(self, plan: Plan, group: SequenceGroup, budget: int) -> int:
        """Put as many items of the group's prompt phase into the plan as the budget allows; returns what is left."""
        while group.todo and (group.todo[0][0] <= budget or plan.is_idle):
            new, stored = group.todo.pop(0)
            plan.chunks.append(Chunk(group, new, stored, not group.todo))
            budget -= new
        self.partial = group if group.todo else None
        return budget

    def is_full_with(self, group: SequenceGroup) -> bool:
        """Whether the limit on sequences keeps `group` out; a group larger than the limit runs alone."""
        return bool(self.running) and self.num_seqs + len(group.sequences) > self.max_num_seqs

    def _complete(self, plan: Plan) -> None:
        """Order the copies that wait, and offer further identical steps where only a finish or an arrival matters."""
        if self.copies:
            plan.ops += self.copies
            self.copies = []
        if not plan.repeats or plan.preempted or self.beam_groups or len(self.batch.sequences) != self.num_seqs:
            return
        plan.open = not self.waiting and not self.swapped
        if plan.open or self.refused or self.swapped or self.is_full_with(self.waiting[0]):
            plan.horizon = self.policy.horizon(self.batch, self.steps_to_finish() - 1)
