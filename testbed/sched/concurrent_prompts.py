"""Several prompts under way at once: each gets a chunk of an iteration, in order of admission."""

from collections import deque

from testbed.core.sequence import SequenceGroup
from testbed.sched.decoding import take_back
from testbed.sched.plan import Plan
from testbed.sched.prompts import PromptChunks
from testbed.sched.residents import Residents


class ConcurrentPrompts(PromptChunks):
    """A chunk has at most longest_chunk tokens; a group is admitted with room for its first chunk.

    Whose prompt phase is under way is seen from what it has yet to do, so `partial` stays empty.
    """

    def __init__(self, residents: Residents, max_num_seqs: int, longest_chunk: int) -> None:
        super().__init__(residents, max_num_seqs)
        self.longest_chunk = longest_chunk

    def go_on(self, plan: Plan, budget: int) -> int:
        """The next chunks of the prompts under way; returns what is left of the token budget.

        A prompt without room takes it from the last one that is under way too, and is preempted itself if that is the
        last. Those that decode have their step in this plan already, so they are no victims.
        """
        residents = self.residents
        if len(residents.batch.sequences) == residents.num_seqs:
            return budget
        under_way = deque(group for group in residents.running.values() if group.todo)
        while under_way and budget > 0:
            group = under_way.popleft()
            while not self._has_room(group, budget, plan):
                if residents.settle_early(plan):
                    continue
                victim = under_way.pop() if under_way else group
                take_back(residents, victim, plan)
                if victim is group:
                    return budget
            budget = self.take(group, plan, budget)
        return budget

    def first_tokens(self, group: SequenceGroup, budget: int) -> int:
        return min(group.prefill_len, self.longest_chunk, budget)

    def take(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        chunk = min(budget, self.longest_chunk)
        left = super().take(group, plan, chunk)
        self.partial = None
        return budget - chunk + left

    def _has_room(self, group: SequenceGroup, budget: int, plan: Plan) -> bool:
        """See to it that the next chunk has room."""
        seq, left, stored = group.todo[0]
        return self.residents.make_room([seq], stored + min(left, self.longest_chunk, budget), plan)


class WholeConcurrentPrompts(ConcurrentPrompts):
    """A group is admitted with room for its whole prompt phase, however little of it the first chunk is."""

    def first_tokens(self, group: SequenceGroup, budget: int) -> int:
        return group.prefill_len
