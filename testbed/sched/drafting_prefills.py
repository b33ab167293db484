"""Admission beside drafts, in a release that admits_with_drafts."""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import CacheHit
from testbed.sched.limits import Limits
from testbed.sched.plan import Plan
from testbed.sched.state import SchedulerState
from testbed.sched.token_budget import ConcurrentPrefills
from testbed.speculation.speculation import Speculation


class DraftingPrefills(ConcurrentPrefills):
    """Prompts in chunks, the first of which needs slots for the look-ahead too.

    Every sequence of an iteration takes speculation.num_inserted tokens of the budget on top. A
    group that is admitted with one token left to compute gets rows for max_drafts more, whose
    results are discarded, so that it is as long as those that decode; but not beside a running
    prompt, which makes the iteration uneven anyway. max_len: the longest sequence in tokens.
    """

    def __init__(
        self,
        state: SchedulerState,
        limits: Limits,
        *,
        fits_whole: bool,
        cuts: bool,
        speculation: Speculation,
        max_len: int,
    ) -> None:
        super().__init__(state, limits, fits_whole=fits_whole, cuts=cuts)
        self.speculation = speculation
        self.max_len = max_len
        self._padding, self._may_pad, self._is_idle = 0, False, True

    def schedule_prefills(self, plan: Plan) -> None:
        self._may_pad, self._is_idle = not plan.chunks, plan.is_idle
        super().schedule_prefills(plan)

    def budget_left(self, plan: Plan) -> int:
        num_seqs = len(plan.drafts) + len(plan.chunks) + 1  # with the next one
        return super().budget_left(plan) - num_seqs * self.speculation.num_inserted

    def first_tokens(self, group: SequenceGroup, budget: int, hit: CacheHit, plan: Plan) -> int:
        cached = min(hit.num_cached(group.prefill_len), group.prefill_len - 1)
        self._padding = self._rows(group.prefill_len - cached, cached)
        if 1 + self._padding > budget:
            return 0
        needed = super().first_tokens(group, budget, hit, plan)
        ahead = self._padding + self.speculation.num_lookahead
        return min(needed + ahead, max(needed, self.max_len)) if needed else 0

    def _rows(self, num_left: int, cached: int) -> int:
        """Rows on top of the last token that is left to compute; 0 if there are none."""
        most = self.speculation.max_drafts
        wanted = num_left == 1 and self._may_pad and (cached > 0 or not self._is_idle)
        return most if wanted and cached + most + 2 <= self.max_len else 0

    def schedule_chunks(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        budget = super().schedule_chunks(group, plan, budget) - self.speculation.num_inserted
        if self._padding:
            plan.chunks[-1] = plan.chunks[-1]._replace(padding=self._padding)
            budget, self._padding = budget - self._padding, 0
        return budget
