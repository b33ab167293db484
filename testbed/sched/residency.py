"""The moves of a group between waiting, running, swapped and finished; every scheduler's common ground."""

import heapq

from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import NO_OPS, Answer, Grant, Ops, Refusal, Tier
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Plan
from testbed.sched.preemption import PreemptionRule, Recovery
from testbed.sched.scheduler import Scheduler


class PolicyError(RuntimeError):
    """A memory policy broke its contract."""


class ResidentScheduler(Scheduler):
    """Keeps groups, batch and finish order in step with what the policy holds.

    num_seqs counts the resident sequences, decoding or in their prompt phase. `copies` wait for the next plan.
    beam_groups are those groups of the batch that search with beams.
    `refused` says that the head of the queue was refused since room was last freed: by clause 2 of the contract it
    would be refused again, so nobody asks. `resume_refused` says the same of the first swapped group.
    """

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
        super().__init__(policy)
        self.preemption = preemption
        self.refused = False
        self.resume_refused = False
        self.num_seqs = 0
        self.copies: list[Ops] = []
        self.beam_groups: dict[int, SequenceGroup] = {}
        self._finishes: list[tuple[int, int, SequenceGroup]] = []

    def admit_group(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answer:
        """Room for the first num_tokens tokens of the group's sequences, or a refusal that changes nothing.

        A policy that shares gives room to the first sequence, which is forked when its prompt is computed; one that
        does not reserves for every sequence, prompt included.
        """
        if len(group.sequences) > 1 and (group.num_generated or not self.policy.shares):
            return self._admit_all(group, num_tokens, plan)
        first = group.sequences[0]
        answer = self.policy.admit(first, num_tokens)
        if isinstance(answer, Grant):
            group.resident = [first]
            group.num_tokens = max(num_tokens, answer.num_cached)
            group.todo = [self._turn(group, answer, plan)]
        return answer

    def _admit_all(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answer:
        """Room for several sequences; those that differ by now, because they come back, are computed one by one."""
        differ = group.num_generated > 0
        num_tokens = group.prefill_len if differ else num_tokens
        grants = self.policy.admit_all(group.sequences, num_tokens)
        if isinstance(grants, Refusal):
            return grants
        group.resident = list(group.sequences)
        group.num_tokens = max(num_tokens, grants[0].num_cached)
        turns = [self._turn(group, grant, plan) for grant in grants]
        group.todo = turns if differ else turns[:1]
        return grants[0]

    def _turn(self, group: SequenceGroup, grant: Grant, plan: Plan) -> tuple[int, int]:
        """What is left to compute of a sequence: (new tokens, tokens stored before them)."""
        self.order(grant.ops, plan)
        # The last token is computed even if it is cached: it yields the next output token.
        stored = min(grant.num_cached, group.prefill_len - 1)
        return group.prefill_len - stored, stored

    def order(self, ops: Ops, plan: Plan) -> None:
        """Have the engine perform `ops` before the iteration."""
        if ops:
            plan.ops.append(ops)

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
        if group.request.beam:
            self.beam_groups[group.request.request_id] = group

    def fork(self, group: SequenceGroup) -> None:
        """The prompt is computed: every sequence starts with it. Copies that this takes come before the next step."""
        first = group.sequences[0]
        for child in group.sequences[1:]:
            ops = self.policy.fork(first, child)
            if ops:
                self.copies.append(ops)
        group.resident = list(group.sequences)

    def leave(self, group: SequenceGroup) -> None:
        """The group no longer decodes; its counts become its own again."""
        steps = self.batch.steps - group.joined_at
        group.num_tokens += steps
        group.num_generated += steps
        group.finish_step = -1
        self.beam_groups.pop(group.request.request_id, None)
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
        # Several that came back together have room, which the policy takes for computed, before the first is computed.
        ahead = len(group.todo) == len(group.sequences) > 1
        give_back = self.policy.withdraw if ahead else self.policy.release
        for seq in group.resident:
            give_back(seq)
        group.resident = []
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
            group.todo = []
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
        self.order(answer.ops, plan)
        group.num_swaps += 1
        group.status = SequenceStatus.SWAPPED
        self.swapped.appendleft(group)
        return True

    def resume(self, plan: Plan) -> None:
        """Bring swapped groups back, the earliest first, as far as there is room; none right after a preemption.

        They step with the batch at once.
        """
        while self.swapped and not plan.preempted and not self.resume_refused:
            group = self.swapped[0]
            answer = self.policy.move(group.sequences, Tier.DEVICE)
            if isinstance(answer, Refusal):
                self.resume_refused = True
                return
            self.swapped.popleft()
            self.arrive(group, SequenceStatus.RUNNING)
            self.order(answer.ops, plan)
            plan.resumed.append(group)
            self._step(group, plan)

    def _step(self, group: SequenceGroup, plan: Plan) -> None:
        """One more token for each sequence of a group that is back; without room for it the group only joins."""
        answer = self.policy.extend(group.sequences, 1)
        if isinstance(answer, Refusal):
            return
        self.order(answer.ops, plan)
        group.num_tokens += 1
        plan.decode_seqs += len(group.sequences)
        plan.decode_context += len(group.sequences) * group.num_tokens

    def room_freed(self) -> None:
        """Something was released, moved out or published: whoever was refused may ask again."""
        self.refused = self.resume_refused = False

    def extend_promised(self, steps: int) -> Grant:
        """Extend the batch within the horizon that the policy has promised."""
        answer = self.policy.extend(self.batch, steps)
        if isinstance(answer, Refusal) or (answer.ops is not NO_OPS and answer.ops):
            name = type(self.policy).__name__
            raise PolicyError(f"{name} promised {steps} more steps by horizon() and then answered {answer}")
        return answer
