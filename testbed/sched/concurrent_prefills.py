"""Prefill of several prompts at once, each in chunks of a limited number of tokens (vLLM V1)."""

from testbed.core.sequence import SequenceGroup
from testbed.sched.plan import Plan
from testbed.sched.prefill import Limits, PrefillChunks
from testbed.sched.state import SchedulerState


class ConcurrentPrefills(PrefillChunks):
    """Several prompts in prefill at once: each gets at most longest_chunk tokens of an iteration.

    A group is admitted with slots for its first chunk, behind what it finds in the cache. fits_whole: only if its whole
    prefill would fit. cuts: what the budget leaves of a chunk waits for the next iteration; else the group waits for an
    iteration that has budget for all of it. Who is in prefill is seen from what it has yet to do, so `partial` stays
    empty.
    """

    def __init__(self, state: SchedulerState, limits: Limits, *, fits_whole: bool, cuts: bool) -> None:
        super().__init__(state, limits)
        self.max_chunk_tokens = limits.max_num_batched_tokens
        self.fits_whole = fits_whole
        self.cuts = cuts

    def goes_into(self, budget: int, group: SequenceGroup) -> bool:
        return budget > 0 and (self.cuts or self._first_chunk(group)[1] <= budget)

    def first_tokens(self, group: SequenceGroup, budget: int) -> int:
        if self.fits_whole and not self.state.policy.fits(group.sequences[0], group.prefill_len):
            return group.prefill_len
        found, chunk = self._first_chunk(group)
        return found + min(chunk, budget)

    def _first_chunk(self, group: SequenceGroup) -> tuple[int, int]:
        """Tokens of the group that are cached, and how many behind them it wants to compute at once."""
        found = min(self.state.policy.find(group.sequences[0], group.prefill_len), group.prefill_len - 1)
        return found, min(group.prefill_len - found, self.max_chunk_tokens)

    def schedule_chunks(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        chunk = min(budget, self.max_chunk_tokens)
        left = super().schedule_chunks(group, plan, chunk)
        self.partial = None
        return budget - chunk + left
