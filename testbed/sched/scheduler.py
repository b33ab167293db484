"""The plug-in API for schedulers."""

from abc import ABC, abstractmethod
from collections import deque
from itertools import count

from testbed.core.errors import PlugInError
from testbed.core.foresight import Foresight
from testbed.core.records import record
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup, SequenceStatus
from testbed.core.slots import GRANTED
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.preemption import PreemptionRule
from testbed.sched.prompts import Prompts
from testbed.sched.residents import Residents


class Scheduler(Foresight, ABC):
    """Decides what the next iteration does; an engine does it and calls `commit`.

    It has `residents`, the moves of groups, and need only say in `plan` which of them happen, and in which order.
    """

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
        self.residents = Residents(policy, preemption)
        self._seq_ids = count()
        self._keeps_order = type(self).choose_order is Scheduler.choose_order

    @property
    def policy(self) -> MemoryPolicy:
        """The memory policy that it asks."""
        return self.residents.policy

    def add(self, request: Incoming) -> SequenceGroup:
        """Queue a request that has arrived."""
        sequences = [Sequence(next(self._seq_ids), request) for _ in range(request.num_seqs)]
        group = SequenceGroup(request, sequences)
        self.residents.waiting.append(group)
        return group

    def end(self, group: SequenceGroup) -> None:
        """The group has its whole output: it gives place and room back."""
        if group.batch is not None:
            self.residents.leave(group)
        self.residents.release(group, SequenceStatus.FINISHED)

    def choose_order(self, waiting: deque[SequenceGroup]) -> None:
        """Put the queue into the order of service before a plan; first come, first served leaves it as it is.

        The order comes from who is in the queue, not from how often it was asked for: in a span nobody asks.
        """

    @abstractmethod
    def plan(self) -> Plan:
        """Ask the policy for room, pick victims, and say what the next iteration does; a false plan means: nothing."""

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """The plan was carried out `steps` times, at most 1 + plan.horizon, with these results."""
        residents, ended = self.residents, results.ended
        grown = GRANTED
        finished: list[SequenceGroup] = []
        if plan.decode_seqs:
            if steps > 1:
                grown = residents.extend_promised(steps - 1)
            residents.batch.advance(steps)
            for request_id in ended:
                group = residents.running[request_id]
                if group.batch is not None:
                    self.end(group)
                    finished.append(group)
            if residents.beams:
                for request_id, group in residents.beams.items():
                    residents.choose_parents(group, results.parents[request_id])
        first_tokens = []
        for group, seq, new, stored, last, _ in plan.chunks:
            if stored + new > seq.stored_offset:  # at rest
                seq.stored_offset = stored + new
            if last:
                first_tokens.append(group)
                self._prefilled(group, ended, finished)
        for group in plan.resumed:
            self._resumed(group, results, finished)
        return record(Outcome, (first_tokens, finished, grown))

    def offer(self, plan: Plan, prompts: Prompts) -> None:
        """Offer further identical steps where only an end or an arrival matters.

        An arrival matters where the queue is empty, or where it might come to stand at its head.
        """
        r = self.residents
        if plan.chunks or len(r.batch.sequences) != r.num_seqs or r.beams or plan.preempted or plan.short:
            return
        if not plan.repeats:
            return
        waiting, swapped = r.waiting, r.swapped
        plan.open = not swapped and not (waiting and self._keeps_order)
        if not waiting or swapped or waiting[0] is r.refused or prompts.is_full_with(waiting[0]):
            plan.horizon = horizon = r.policy.horizon(r.batch)
            if horizon < 0:
                name = type(r.policy).__name__
                raise PlugInError(f"{name} promises {horizon} steps by horizon(), which is at least 0")

    def _prefilled(self, group: SequenceGroup, ended: tuple[int, ...], finished: list[SequenceGroup]) -> None:
        """The prompt phase of the group is over, and has brought its next output token."""
        group.generate()
        if group.request.request_id in ended:
            self.end(group)
            finished.append(group)
            return
        if len(group.sequences) > 1 and group.num_generated == 1:
            self.residents.fork(group)
        self.residents.join(group)

    def _resumed(self, group: SequenceGroup, results: Results, finished: list[SequenceGroup]) -> None:
        """The group is back from the host, and has taken this step if it had room for its newest token."""
        if group.sequences[0].room > group.sequences[0].stored:
            group.generate()
            for seq in group.sequences:
                seq.stored = seq.room
            if group.request.request_id in results.ended:
                self.end(group)
                finished.append(group)
                return
            if group.request.beam:
                self.residents.choose_parents(group, results.parents[group.request.request_id])
        self.residents.join(group)
