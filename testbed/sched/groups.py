"""The groups of a scheduler, and every way in which they lose their slots."""

from collections import deque

from testbed.core.sequence import Batch, SequenceGroup, SequenceStatus
from testbed.core.slots import HOST, NO_OPS, Granular, Ops, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Plan, one_answer


class Groups:
    """Groups and batch, consistent with the policy's tables: counts change by the policy's answers
    alone.

    waiting: in order of service, preempted groups in front. running: admitted, in order of
    admission. swapped: on the host, the first to come back in front. batch: the sequences that
    decode in lockstep; beams: those of its groups that search with beams. num_seqs counts the
    running sequences. kept: the waiting group, if any, that has lost the end of its tokens only,
    and keeps the slots of the others. unloaded: groups that have come, for which nothing was loaded
    yet; empty unless the policy prefetches. ended: groups that have their whole output and keep
    their slots until the results of their last iteration are in. refused: the group that was
    refused since memory was last released; by clause 2 of the contract it would be refused again,
    so the scheduler does not retry. swap_in_refused: the same for the first swapped group. forks:
    the sequences forked since the last plan; copies: what they have left to copy before the next
    one.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.waiting: deque[SequenceGroup] = deque()
        self.running: dict[int, SequenceGroup] = {}
        self.swapped: deque[SequenceGroup] = deque()
        self.batch = Batch()
        self.beams: dict[int, SequenceGroup] = {}
        self.num_seqs = 0
        self.unloaded: set[SequenceGroup] = set()  # never iterated over
        self.ended: list[SequenceGroup] = []
        self.refused: SequenceGroup | None = None
        self.kept: SequenceGroup | None = None
        self.swap_in_refused = False
        self.copies: list[tuple[SequenceGroup, Ops]] = []
        self.forks = 0

    def order(self, ops: Ops, plan: Plan) -> None:
        """Have the engine perform `ops` before the iteration."""
        if ops != NO_OPS:
            plan.ops.append(ops)

    def memory_released(self) -> None:
        """Memory was released, moved out or published, or a transfer has landed: a refused request
        may be retried.
        """
        self.refused, self.swap_in_refused = None, False

    def returns_first(self) -> bool:
        """Whether the first swapped group, which there is, comes back before a waiting one is
        admitted.
        """
        return True

    def preemptible(self) -> dict[int, SequenceGroup]:
        """The running groups among which a preemption rule chooses its victim, by request id."""
        return self.running

    def with_slots(self) -> list[SequenceGroup]:
        """The groups with slots on the device, running or waiting."""
        return [*self.running.values(), *(() if self.kept is None else (self.kept,))]

    def leave_batch(self, group: SequenceGroup) -> None:
        if group.batch is not None:
            self.beams.pop(group.request.request_id, None)
            group.leave_batch()

    def find(self, request_id: int) -> SequenceGroup | None:
        """The group of a request that waits, runs or is swapped out."""
        if group := self.running.get(request_id):
            return group
        others = (*self.waiting, *self.swapped)
        return next((one for one in others if one.request.request_id == request_id), None)

    def remove(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group leaves for good, wherever it is, and gives back what it holds: it was
        cancelled, or has ended although it was preempted since.
        """
        self.leave_batch(group)
        if group.request.request_id in self.running:
            self.release(group, status)
        else:
            self._remove_from_queue(group, status)
        group.todo = []
        if group in self.ended:
            self.ended.remove(group)

    def _remove_from_queue(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The same of a group that waits, maybe with kept slots, or is swapped out."""
        (self.swapped if group.status is SequenceStatus.SWAPPED else self.waiting).remove(group)
        self.unloaded.discard(group)
        group.status = status
        if group is self.kept:
            self.kept = None
        self._release_slots(group)
        self.memory_released()

    def release(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group stops running and releases its slots: it is finished, or waits again."""
        group.status = status
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)
        self._release_slots(group)
        if self.copies:
            self.copies = [kept for kept in self.copies if kept[0] is not group]
        self.memory_released()

    def _release_slots(self, group: SequenceGroup) -> None:
        for seq in group.resident:
            self.policy.release(seq)
            seq.slots_offset = seq.stored_offset = 0  # at rest
        group.resident = []

    def take_kept(self, num_tokens: int = 0) -> bool:
        """Release at least num_tokens slots of what a waiting group has kept, 0: all; False where
        none has any.
        """
        group = self.kept
        if group is None:
            return False
        seq, footprint = group.sequences[0], self.policy.footprint(group.sequences[0])
        size = footprint.size if isinstance(footprint, Granular) else 1
        left = max(seq.num_stored - num_tokens, 0) // size * size if num_tokens else 0
        if left:
            self.policy.shrink(seq, seq.num_slots - left)
            seq.slots_offset = seq.stored_offset = left  # at rest
        else:
            self._release_slots(group)
            self.kept = None
        self.memory_released()
        return True

    def finish_ended(self) -> None:
        """Those that have ended give their slots back, in order of admission."""
        ended = (
            self.ended
            if len(self.ended) < 2
            else [one for one in self.running.values() if one in self.ended]
        )
        for group in ended:
            self.leave_batch(group)
            self.release(group, SequenceStatus.FINISHED)
        self.ended.clear()

    def before_preemption(self, group: SequenceGroup) -> None:
        """The group, which is in no batch, is about to lose its slots."""

    def preempt_by_recompute(self, group: SequenceGroup, tail_tokens: int = 0) -> None:
        """Tokens go back to the head of the queue; with tail_tokens one group loses only so many of
        its last slots.
        """
        self.before_preemption(group)
        if tail_tokens and self.kept is None:
            self.kept, resident, group.resident = group, group.resident, []
            self.release(group, SequenceStatus.WAITING)
            group.resident = resident
            self.take_kept(tail_tokens)
        else:
            self.release(group, SequenceStatus.WAITING)
        for seq in group.sequences:
            seq.num_preemptions += 1
        group.todo = []
        group.num_recomputes += 1
        self.waiting.appendleft(group)

    def swap_out(self, group: SequenceGroup, plan: Plan) -> bool:
        """Move the group to the host; False where the host pool is full."""
        answer = one_answer(self.policy, self.policy.move(group.sequences, HOST))
        if isinstance(answer, Refusal):
            return False
        self.order(answer.ops, plan)
        group.status = SequenceStatus.SWAPPED
        group.num_swaps += 1
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)
        self.swapped.appendleft(group)
        return True
