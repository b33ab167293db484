"""Puts prompt phases into a plan, first come, first served (section 4.5): whole prompts, or chunks of them."""

from abc import ABC, abstractmethod

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Refusal
from testbed.sched.plan import Plan
from testbed.sched.residents import Residents


class Prompts(ABC):
    """`partial` is the one group, if any, whose prompt phase is under way and not over after this plan.

    It has nothing left to do where it was preempted since.
    """

    def __init__(self, residents: Residents, max_num_seqs: int) -> None:
        self.residents = residents
        self.max_num_seqs = max_num_seqs
        self.partial: SequenceGroup | None = None

    def fill(self, plan: Plan, budget: int) -> None:
        """Go on with the unfinished prompt phase, then admit from the head of the queue, within the token budget."""
        residents, waiting = self.residents, self.residents.waiting
        if self.partial is not None:
            budget = self.take(self.partial, plan, budget)
        while waiting and self.partial is None and waiting[0] is not residents.refused and not residents.swapped:
            group = waiting[0]
            if self.is_full_with(group) or not (plan.is_idle or self.goes_into(budget, group)):
                return
            answer = residents.admit(group, self.first_tokens(group, budget), plan)
            if answer is Refusal.LATER:
                return
            waiting.popleft()
            if answer is Refusal.NEVER:
                plan.rejected.append(group)
            else:
                budget = self.take(group, plan, budget)

    def is_full_with(self, group: SequenceGroup) -> bool:
        """Whether the limit on sequences keeps `group` out; a group larger than the limit runs alone."""
        resident = self.residents
        return bool(resident.running) and resident.num_seqs + len(group.sequences) > self.max_num_seqs

    def next_item(self) -> int:
        """Tokens of the item that would be computed next."""
        if self.partial is not None and self.partial.todo:
            return self.partial.todo[0].new
        return self.residents.waiting[0].prefill_len if self.residents.waiting else 0

    @abstractmethod
    def goes_into(self, budget: int, group: SequenceGroup) -> bool:
        """Whether the token budget lets the group begin in an iteration that does other work too."""

    @abstractmethod
    def first_tokens(self, group: SequenceGroup, budget: int) -> int:
        """Tokens that the group needs room for when it is admitted."""

    @abstractmethod
    def take(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        """Put as much of the group's prompt phase into the plan as the budget allows; returns what is left of it.

        The group is the partial one if something of it is left.
        """


class WholePrompts(Prompts):
    """An item larger than the token budget runs alone in an iteration."""

    def goes_into(self, budget: int, group: SequenceGroup) -> bool:
        return group.prefill_len <= budget

    def first_tokens(self, group: SequenceGroup, budget: int) -> int:
        return group.prefill_len

    def take(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        while group.todo and (group.todo[0].new <= budget or plan.is_idle):
            new = group.todo[0].new
            self.residents.place(group, new, plan)
            budget -= new
        self.partial = group if group.todo else None
        return budget


class PromptChunks(Prompts):
    """What the budget leaves of a prompt waits for the next iteration."""

    def goes_into(self, budget: int, group: SequenceGroup) -> bool:
        return budget > 0

    def first_tokens(self, group: SequenceGroup, budget: int) -> int:
        return min(group.prefill_len, budget)

    def take(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        while group.todo and budget > 0:
            seq, left, stored = group.todo[0]
            new = min(left, budget)
            if not self.residents.make_room([seq], stored + new, plan):
                new = min(new, seq.room - stored)  # what there is room for already
                if new <= 0:
                    break
            self.residents.place(group, new, plan)
            budget -= new
        self.partial = group if group.todo else None
        return budget
