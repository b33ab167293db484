"""The token budget of an iteration: which prefills it may contain, first come, first served
(section 4.5), as whole prompts or in chunks.
"""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import NO_HIT, CacheHit
from testbed.sched.limits import Limits
from testbed.sched.plan import Plan
from testbed.sched.state import SchedulerState
from testbed.sched.swap import precedes_admission


class Prefills:
    """Whole prompts; an item larger than max_num_batched_tokens, the token budget, runs alone in an
    iteration.

    `partial` is the one group, if any, whose prefill does not end in this plan; preempted since, it
    has no work.
    """

    def __init__(self, state: SchedulerState, limits: Limits) -> None:
        self.state = state
        self.limits = limits
        self.partial: SequenceGroup | None = None

    def schedule_prefills(self, plan: Plan) -> None:
        """Continue the unfinished prefill, then admit within the budget; none after a preemption or
        before a swap.
        """
        state, waiting = self.state, self.state.waiting
        if (
            self.partial is None and (not waiting or waiting[0] is state.refused)
        ) or plan.preempted:
            return
        budget = self.budget_left(plan)
        if self.partial is not None:
            budget = self.schedule_chunks(self.partial, plan, budget)
        while waiting and self.partial is None and waiting[0] is not state.refused:
            group = waiting[0]
            if (state.swapped and precedes_admission(state)) or self.is_full_with(group):
                return
            if not (self.goes_into(budget, group) or plan.is_idle):
                return
            hit = state.lookup(group)
            num_tokens = self.first_tokens(group, budget, hit, plan)
            if not num_tokens:
                return
            answer = state.admit(group, num_tokens, plan, hit)
            if isinstance(answer, list):
                budget = self.schedule_chunks(group, plan, budget)
            elif not answer.is_final:
                return

    def budget_left(self, plan: Plan) -> int:
        """Tokens that the plan may have on top."""
        budget = self.limits.max_num_batched_tokens - plan.decode_seqs
        if plan.drafts:
            budget -= sum([1 + draft.num_drafts for draft in plan.drafts])
        return budget - sum([chunk.new for chunk in plan.chunks]) if plan.chunks else budget

    def is_full_with(self, group: SequenceGroup) -> bool:
        """True if the limit on sequences keeps `group` out; a group larger than the limit runs
        alone.
        """
        state, most = self.state, self.limits.max_num_seqs
        return bool(state.running) and state.num_seqs + len(group.sequences) > most

    def next_exceeds_budget(self) -> bool:
        """True if the item that would be computed next has more tokens than any iteration may
        have.
        """
        most, waiting = self.limits.max_num_batched_tokens, self.state.waiting
        if self.partial is not None and self.partial.todo:
            return self.partial.todo[0].new > most
        return bool(waiting) and waiting[0].prefill_len > most

    def goes_into(self, budget: int, group: SequenceGroup) -> bool:
        """True if the token budget lets the group begin in an iteration that does other work too,
        whatever is cached of it.
        """
        return group.prefill_len <= budget

    def first_tokens(self, group: SequenceGroup, budget: int, hit: CacheHit, plan: Plan) -> int:
        """Tokens for which the group needs slots when it is admitted with this hit; 0: it waits."""
        return group.prefill_len

    def next_chunk(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        """Tokens of the group's next item that the budget and its slots allow; 0: the item
        waits.
        """
        new = group.todo[0].new
        return new if new <= budget or plan.is_idle else 0

    def schedule_chunks(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        """Put as much of the group's prefill into the plan as the budget allows; what is left of
        the budget.
        """
        while group.todo and (new := self.next_chunk(group, plan, budget)):
            self.state.schedule_chunk(group, new, plan)
            budget -= new
        self.partial = group if group.todo else None
        return budget


class PrefillChunks(Prefills):
    """The rest of a prompt waits for the next iteration."""

    def goes_into(self, budget: int, group: SequenceGroup) -> bool:
        return budget > 0

    def first_tokens(self, group: SequenceGroup, budget: int, hit: CacheHit, plan: Plan) -> int:
        return min(group.prefill_len, budget)

    def next_chunk(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        seq, left, num_stored = group.todo[0]
        new = min(left, budget)
        if new > 0 and not self.state.ensure_slots([seq], num_stored + new, plan):
            new = min(new, seq.num_slots - num_stored)  # what it has slots for already
        return max(new, 0)


class ConcurrentPrefills(PrefillChunks):
    """Several prompts at once, each in chunks of limited tokens (vLLM V1) behind what it finds in
    the cache.

    fits_whole: a group is admitted only if its whole prefill would fit. cuts: what the budget
    leaves of a chunk waits, else the group waits for budget for all of it. The tokens that a group
    has to compute show whether it is in prefill: `partial` stays empty.

    Attributes:
        asks_again: a refused group is asked about in every plan: what it needs for its first chunk
            behind a hit gets less as the hit is evicted. Its whole prefill needs the same, or
            `extend` says that it ends refusals.
    """

    def __init__(
        self, state: SchedulerState, limits: Limits, *, fits_whole: bool, cuts: bool
    ) -> None:
        super().__init__(state, limits)
        self.max_chunk_tokens = limits.max_num_batched_tokens
        self.fits_whole = fits_whole
        self.cuts = cuts
        self.asks_again = not fits_whole and state.memory.publishes is not None

    def schedule_prefills(self, plan: Plan) -> None:
        if self.asks_again:
            self.state.memory_released()
        super().schedule_prefills(plan)

    def first_tokens(self, group: SequenceGroup, budget: int, hit: CacheHit, plan: Plan) -> int:
        prefill_len = group.prefill_len
        cached = min(hit.num_cached(prefill_len), prefill_len - 1)
        chunk = min(prefill_len - cached, self.max_chunk_tokens)
        if not (self.cuts or chunk <= budget or plan.is_idle):
            return 0
        new = self._cut(group, cached, min(chunk, budget), hit)
        if not new:
            return 0
        if self.fits_whole and not self._fits(group, hit):
            return prefill_len
        return cached + new

    def chunk_of(self, group: SequenceGroup, budget: int) -> int:
        """Tokens of the next chunk of a group in prefill, whether it has slots for them or not."""
        item = group.todo[0]
        new = min(item.new, self.max_chunk_tokens, budget)
        return self._cut(group, item.num_stored, new, NO_HIT) if new > 0 else 0

    def next_chunk(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        return super().next_chunk(group, plan, self.chunk_of(group, budget))

    def _cut(self, group: SequenceGroup, start: int, new: int, hit: CacheHit) -> int:
        """The tokens of a chunk, whose end the memory may choose."""
        cuts_chunks = self.state.memory.cuts_chunks
        if cuts_chunks is None:
            return new
        most, num_tokens = self.limits.max_num_batched_tokens, group.prefill_len
        if self.limits.max_chunk_tokens:
            most = min(most, self.limits.max_chunk_tokens)
        return cuts_chunks.cut_chunk(group.sequences[0], start, new, num_tokens, most, hit)

    def _fits(self, group: SequenceGroup, hit: CacheHit) -> bool:
        """True if the whole prefill would be granted; False if the policy cannot say."""
        estimates = self.state.memory.estimates
        return estimates is not None and estimates.fits(group.sequences[0], group.prefill_len, hit)

    def schedule_chunks(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        chunk = min(budget, self.max_chunk_tokens)
        if self.state.memory.cuts_chunks is not None:
            chunk = self.chunk_of(group, budget)
        left = chunk
        while left > 0 and group.todo and (new := self.next_chunk(group, plan, left)):
            self.state.schedule_chunk(group, new, plan)
            left -= new
        return budget - chunk + left


class GroupLimit(Prefills):
    """Whole prompts; the running groups and the sequences of the next one together stay within the
    limit.
    """

    def is_full_with(self, group: SequenceGroup) -> bool:
        running = self.state.running
        return bool(running) and len(running) + len(group.sequences) > self.limits.max_num_seqs
