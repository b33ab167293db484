"""Iteration-level scheduling, first come first served (Orca; section 4.5): prefill separate, mixed or chunked."""

from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import NO_GROWTH, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Chunk, Outcome, Plan
from testbed.sched.preemption import PreemptionRule
from testbed.sched.residency import ResidentScheduler


class IterationScheduler(ResidentScheduler):
    """Limits: at most max_num_batched_tokens tokens and max_num_seqs resident sequences in an iteration.

    An item larger than the token budget runs alone in an iteration.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        max_num_batched_tokens: int = 2560,
        max_num_seqs: int = 256,
    ) -> None:
        super().__init__(policy, preemption)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs

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
        first_tokens = [chunk.group for chunk in plan.chunks if chunk.last]
        for chunk in plan.chunks:
            self._prefilled(chunk, finished)
        for group in plan.resumed:
            self.join(group)
        if self.policy.caches_prefixes:
            self.room_freed()
        return Outcome(first_tokens, finished, growth)

    def _prefilled(self, chunk: Chunk, finished: list[SequenceGroup]) -> None:
        group = chunk.group
        group.num_tokens = chunk.stored + chunk.new
        if not chunk.last:
            return
        group.num_generated += 1
        if group.num_generated == group.request.output_len:
            self.finish(group)
            finished.append(group)
            return
        if self.policy.shares:
            for child in group.sequences[1:]:
                self.policy.fork(group.sequences[0], child)
        self.join(group)

    def _decode(self, plan: Plan) -> None:
        """Extend the batch by one step, preempting until it fits."""
        while self.batch:
            answer = self.policy.extend(self.batch, 1)
            if not isinstance(answer, Refusal):
                plan.decode_seqs = len(self.batch)
                plan.decode_context = self.batch.context + len(self.batch)
                if answer.ops:
                    plan.ops.append(answer.ops)
                return
            self.preempt(plan)

    def _admit(self, plan: Plan, budget: int) -> None:
        """Admit whole prompts from the head of the queue."""
        while self.waiting and not self.refused:
            num_tokens = self.waiting[0].prefill_len
            if num_tokens > budget and (plan.chunks or plan.decode_seqs):
                return
            used = self._admit_head(plan, num_tokens)
            if used is None:
                return
            budget -= used

    def _admit_head(self, plan: Plan, num_tokens: int) -> int | None:
        """Admit the first num_tokens tokens of the head of the queue; how many must be computed, None: not now."""
        group = self.waiting[0]
        if self.is_full_with(group):
            return None
        answer = self.admit_group(group, num_tokens)
        if answer is Refusal.LATER:
            self.refused = True
            return None
        self.waiting.popleft()
        if isinstance(answer, Refusal):
            plan.rejected.append(group)
            return 0
        if answer.ops:
            plan.ops.append(answer.ops)
        self.arrive(group, SequenceStatus.PREFILLING)
        # The last prompt token is computed even if it is cached: it yields the first output token.
        stored = min(answer.num_cached, group.prefill_len - 1)
        plan.chunks.append(Chunk(group, num_tokens - stored, stored, num_tokens == group.prefill_len))
        return num_tokens - stored

    def is_full_with(self, group: SequenceGroup) -> bool:
        """Whether the limit on sequences keeps `group` out; a group larger than the limit runs alone."""
        return bool(self.running) and self.num_seqs + len(group.sequences) > self.max_num_seqs

    def _open_window(self, plan: Plan) -> None:
        """Offer further identical steps where nothing but a finish, or an arrival, could change the next decision."""
        blocked = self.refused or bool(self.swapped) or (bool(self.waiting) and self.is_full_with(self.waiting[0]))
        plan.open = not self.waiting and not self.swapped
        steady = plan.decode_seqs and not (plan.chunks or plan.ops or plan.resumed or plan.preempted)
        if steady and len(self.batch) == self.num_seqs and (blocked or plan.open):
            plan.horizon = self.policy.horizon(self.batch, self.steps_to_finish() - 1)
