"""Preemption of a victim, and its return (section 4.5): all-or-nothing, the whole group of a
request.
"""

from abc import ABC, abstractmethod
from enum import Enum

from testbed.core.errors import InputError
from testbed.core.sequence import SequenceGroup
from testbed.core.units import PositiveTokens
from testbed.cost.model import CostModel
from testbed.sched.plan import Plan, wrong_answer
from testbed.sched.state import SchedulerState
from testbed.sched.swap import swap_out
from testbed.sched.victims import VictimRule, chosen_victim


class Recovery(Enum):
    """The way in which a preempted group gets its K and V back."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
    RECOMPUTE_TAIL = "recompute tail"


class PreemptionRule(VictimRule, ABC):
    """Victim order and recovery; the sequences of a request together (gang scheduling).

    A rule that is an oracle has a parameter `lengths` (testbed/run/oracles.py).

    Attributes:
        cost: the run's cost model, or None.
        tail_tokens: what RECOMPUTE_TAIL takes at a time, in tokens.
    """

    tail_tokens: int = 1

    def __init__(self, cost: CostModel | None = None) -> None:
        """A rule; further parameters are given by name.

        Args:
            cost: the run's cost model, for a rule that compares costs.
        """
        self.cost = cost

    @abstractmethod
    def recovery(self, group: SequenceGroup) -> Recovery:
        """The way in which a victim comes back; a full host pool falls back to recompute.

        Args:
            group: the victim.
        """


class Recompute(PreemptionRule):
    """Release everything; prefill prompt and generated tokens again in one iteration."""

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.RECOMPUTE


class RecomputeTail(PreemptionRule):
    """Take the last tokens of the victim, tail_tokens in whole blocks at a time, for as long as
    others lack slots.

    The victim waits with what it keeps, and computes the rest again. A group of several sequences,
    and one of a policy that does not truncate, loses everything.
    """

    def __init__(self, cost: CostModel | None = None, *, tail_tokens: PositiveTokens = 1) -> None:
        super().__init__(cost)
        if tail_tokens < 1:
            raise InputError(
                key="tail_tokens", value=tail_tokens, problem="must be at least 1 token"
            )
        self.tail_tokens = tail_tokens

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.RECOMPUTE_TAIL


class Swap(PreemptionRule):
    """Move everything to the host and back."""

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.SWAP


class RecomputeSingleSwapGroup(PreemptionRule):
    """The 2023 system: recompute for a single sequence, swap for a group of several."""

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.RECOMPUTE if len(group.sequences) == 1 else Recovery.SWAP


def preempt_victim(state: SchedulerState, rule: PreemptionRule, plan: Plan) -> None:
    """Take slots back from the rule's victim."""
    if state.free_for_running(rule.tail_tokens):
        return
    group = chosen_victim(state, rule)
    preempt_group(state, rule, group, plan)


def preempt_group(
    state: SchedulerState, rule: PreemptionRule, group: SequenceGroup, plan: Plan
) -> None:
    """Preempt a group. A partly computed prompt is lost; for any other group the rule decides how
    it returns.
    """
    plan.preempted.append(group)
    recovery = Recovery.RECOMPUTE
    if group.batch is not None:
        state.leave_batch(group)
        recovery = _recovery(rule, group)
    swaps = recovery is Recovery.SWAP and state.memory.swaps is not None
    if not (swaps and swap_out(state, group, plan)):
        truncates = state.memory.truncates is not None and len(group.sequences) == 1
        if recovery is Recovery.RECOMPUTE_TAIL and truncates:
            state.preempt_tail(group, rule.tail_tokens)
        else:
            state.preempt_by_recompute(group)
    state.memory_released()


def _recovery(rule: PreemptionRule, group: SequenceGroup) -> Recovery:
    recovery = rule.recovery(group)
    if not isinstance(recovery, Recovery):
        raise wrong_answer(rule, recovery, "recovery() gives a Recovery")
    return recovery
