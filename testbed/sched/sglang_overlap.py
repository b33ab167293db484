"""SGLang's scheduler with overlap, its default: a plan is made while the iteration before runs."""

from collections.abc import Iterable
from typing import Any, ClassVar

from testbed.core.sequence import SequenceGroup
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.preemption import PreemptionRule
from testbed.sched.sglang import OVER, Computed, SGLang


class OverlappedSGLang(SGLang):
    """SGLang, of which a plan is made while the iteration before runs.

    It knows the results of the one before that. A request that has all declared tokens then takes
    no step; one that ends by a stop token takes one more. If memory lacks while such a last token
    is in flight, the decode waits for it.
    """

    plans_ahead: ClassVar[bool] = True

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule, **options: Any) -> None:
        super().__init__(policy, preemption, **options)
        self._computing = Computed([], ())
        self._anticipated: Outcome | None = None
        self._publishes_next = False  # when the results are known, which begins writes

    def can_plan_ahead(self) -> bool:
        return True

    def anticipate(self, plan: Plan, steps: int, ended: tuple[int, ...]) -> Outcome:
        """The last of the plan's iterations begins; which outputs it ends is not known."""
        outcome = self.carry_out(plan, steps, Results())
        self._computing = Computed(self._planned, outcome.first_tokens)
        self.outputs.in_flight = self._with_next_token(outcome.first_tokens)
        self._anticipated = outcome
        self._publishes_next = bool(outcome.first_tokens or ended)
        return outcome

    def _is_computing(self) -> bool:
        return self._anticipated is not None

    def _enable_fast_forward(self, plan: Plan) -> None:
        if self.memory.loads_hits is None or not self._publishes_next:
            super()._enable_fast_forward(plan)

    def _with_next_token(self, prefilled: Iterable[SequenceGroup]) -> set[SequenceGroup]:
        decoding = [group for group in self._planned if not group.todo and group.status not in OVER]
        return {*prefilled, *decoding}

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """Give each request its token, unless it was retracted since."""
        outcome, self._anticipated = self._anticipated, None
        if outcome is None:
            return super().commit(plan, steps, results)
        self._end_loads(self._computing.groups)
        known, self.outputs.in_flight = self.outputs.in_flight, set()
        groups = [group for group in self._computing.groups if group in known]
        ended = [group for group in groups if group.request_id in results.ended]
        for group in ended:
            self.finish(group)
        self._settle(Computed(groups, self._computing.prefilled), ended)
        first = [group for group in outcome.first_tokens if group in known]
        return outcome._replace(first_tokens=first, finished=ended)
