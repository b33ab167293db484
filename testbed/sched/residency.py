"""The moves of a group between waiting, running, swapped and finished; every scheduler's common ground."""

import heapq

from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import Answer, Grant, Refusal, Tier
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule, Recovery
from testbed.sched.scheduler import Scheduler


class PolicyError(RuntimeError):
    """A memory policy broke its contract."""


class ResidentScheduler(Scheduler):
    """Keeps groups, batch and finish order in step with what the policy holds.

    num_seqs counts the resident sequences, decoding or in their prompt phase.
    `refused` says that the head of the queue was refused since room was last freed: by clause 2 of the contract it
    would be refused again, so nobody asks. `resume_refused` says the same of the first swapped group.
    """

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
        super().__init__(policy)
        self.preemption = preemption
        self.refused = False
        self.resume_refused = False
        self.num_seqs = 0
        self._finishes: list[tuple[int, int, SequenceGroup]] = []

    def admit_group(self, group: SequenceGroup, num_tokens: int) -> Answer:
        """First room for num_tokens tokens of the group; without sharing, of each of its sequences."""
        first, *others = group.sequences
        answer = self.policy.admit(first, num_tokens)
        if self.policy.shares or isinstance(answer, Refusal):
            return answer
        for i, seq in enumerate(others):
            other = self.policy.admit(seq, num_tokens)
            if isinstance(other, Refusal):
                for admitted in group.sequences[: i + 1]:
                    self.policy.release(admitted)
                return other
        return answer

    def arrive(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group is resident from now on."""
        group.status = status
        self.running[group.request.request_id] = group
        self.num_seqs += len(group.sequences)

    def depart(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group is no longer resident."""
        group.status = status
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)

    def join(self, group: SequenceGroup) -> None:
        """The group decodes with the batch from the next step on."""
        group.status = SequenceStatus.RUNNING
        batch = self.batch
        group.joined_at = batch.steps
        group.finish_step = batch.steps + group.request.output_len - group.num_generated
        heapq.heappush(self._finishes, (group.finish_step, group.request.request_id, group))
        for seq in group.sequences:
            batch.join(seq, group.num_tokens)

    def leave(self, group: SequenceGroup) -> None:
        """The group no longer decodes; its counts become its own again."""
        steps = self.batch.steps - group.joined_at
        group.num_tokens += steps
        group.num_generated += steps
        group.finish_step = -1
        for seq in group.sequences:
            self.batch.leave(seq, group.num_tokens)

    def steps_to_finish(self) -> int:
        """Steps after which the next group of the batch has its whole output. The batch is not empty."""
        finishes = self._finishes
        while finishes[0][0] != finishes[0][2].finish_step:  # left the batch since, by preemption
            heapq.heappop(finishes)
        return finishes[0][0] - self.batch.steps

    def pop_complete(self) -> list[SequenceGroup]:
        """The groups of the batch that have their whole output by now, in order of completion, then arrival."""
        complete, finishes = [], self._finishes
        while finishes and finishes[0][0] <= self.batch.steps:
            step, _, group = heapq.heappop(finishes)
            if step == group.finish_step:
                group.finish_step = -1  # a group that left and came back may have a second entry for the same step
                complete.append(group)
        return complete

    def finish(self, group: SequenceGroup) -> None:
        """Everything is generated: give the room back."""
        self.depart(group, SequenceStatus.FINISHED)
        self.release(group)

    def release(self, group: SequenceGroup) -> None:
        """Give back whatever the group holds."""
        for seq in group.sequences:
            self.policy.release(seq)
        self.room_freed()

    def preempt(self, plan: Plan) -> None:
        """Take room back from the rule's victim."""
        group = self.preemption.victim(self.running)
        decoding = group.status is SequenceStatus.RUNNING
        if decoding:
            self.leave(group)
        plan.preempted.append(group)
        self.depart(group, SequenceStatus.WAITING)
        if not (decoding and self.preemption.recovery(group) is Recovery.SWAP and self.swap_out(group, plan)):
            self.release(group)
            group.num_tokens = 0
            group.num_recomputes += 1
            self.waiting.appendleft(group)
        self.room_freed()

    def swap_out(self, group: SequenceGroup, plan: Plan) -> bool:
        """Move the group to the host; False where the host pool is full or the policy has none."""
        if not self.policy.moves_tiers:
            return False
        answer = self.policy.move(group.sequences, Tier.HOST)
        if isinstance(answer, Refusal):
            return False
        plan.ops.append(answer.ops)
        group.num_swaps += 1
        group.status = SequenceStatus.SWAPPED
        self.swapped.appendleft(group)
        return True

    def resume(self, plan: Plan) -> None:
        """Bring swapped groups back, the earliest first, as far as there is room; none right after a preemption."""
        while self.swapped and not plan.preempted and not self.resume_refused:
            group = self.swapped[0]
            answer = self.policy.move(group.sequences, Tier.DEVICE)
            if isinstance(answer, Refusal):
                self.resume_refused = True
                return
            self.swapped.popleft()
            self.arrive(group, SequenceStatus.RUNNING)
            plan.ops.append(answer.ops)
            plan.resumed.append(group)

    def room_freed(self) -> None:
        """Something was released, moved out or published: whoever was refused may ask again."""
        self.refused = self.resume_refused = False

    def extend_promised(self, steps: int) -> Grant:
        """Extend the batch within the horizon that the policy has promised."""
        answer = self.policy.extend(self.batch, steps)
        if isinstance(answer, Refusal) or answer.ops:
            name = type(self.policy).__name__
            raise PolicyError(f"{name} promised {steps} more steps by horizon() and then answered {answer}")
        return answer
