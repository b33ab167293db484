"""The groups of a scheduler, and their moves between waiting, running, swapped and finished; every
scheduler has one of these.
"""

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Any

from testbed.core.sequence import (
    Batch,
    Item,
    Sequence,
    SequenceGroup,
    SequenceStatus,
    disband,
    passing_batch,
)
from testbed.core.slots import (
    GRANTED,
    HOST,
    NO_HIT,
    NO_OPS,
    Answers,
    CacheHit,
    Grant,
    Granular,
    Lease,
    Ops,
    Refusal,
    round_down,
)
from testbed.memory.capabilities import capabilities_of
from testbed.memory.policy import MemoryPolicy
from testbed.sched.lessees import Lessee
from testbed.sched.plan import Chunk, Plan, one_answer, wrong_answer


class SchedulerState:
    """Groups and batch, consistent with the policy's tables: counts change by the policy's answers
    alone.

    Attributes:
        policy: the memory policy, for the calls that every policy answers.
        memory: what else it can do.
        waiting: groups in order of service, preempted ones in front.
        running: groups that were admitted, by request id in order of admission.
        swapped: groups on the host, the first to come back in front.
        batch: the sequences that decode in lockstep.
        beams: the groups of the batch that search with beams, by request id.
        num_seqs: running sequences.
        not_loaded: groups that have come, for which nothing was loaded yet; empty unless the
            scheduler prefetches.
        ended: groups that have their whole output, and keep their slots until the results of their
            last iteration are in.
        refused: the group that was refused since memory was last released. By clause 2 of the
            contract it would be refused again, so the scheduler does not retry.
        partially_preempted: the waiting group, if any, that has lost the end of its tokens only.
        swap_in_refused: the first swapped group was refused since memory was last released.
        copies: what forked groups have left to copy before the next plan.
        forks: sequences forked since the last plan.
        stepwise: no plan may be repeated, so that every step is seen.
        reserved: groups in no queue, whose prompts another engine hands over.
        leased: groups that are over, whose slots `lessee` needs, and until when (ps; 0: not known
            yet).
        lessee: who needs the slots of such groups.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.memory = capabilities_of(policy)
        self.waiting: deque[SequenceGroup] = deque()
        self.running: dict[int, SequenceGroup] = {}
        self.swapped: deque[SequenceGroup] = deque()
        self.batch = Batch()
        self.beams: dict[int, SequenceGroup] = {}
        self.num_seqs = 0
        self.not_loaded: set[SequenceGroup] = set()  # never iterated over
        self.ended: list[SequenceGroup] = []
        self.refused: SequenceGroup | None = None
        self.partially_preempted: SequenceGroup | None = None
        self.swap_in_refused = False
        self.copies: list[tuple[SequenceGroup, Ops]] = []
        self.forks = 0
        self.stepwise = False
        self.reserved: dict[SequenceGroup, None] = {}  # as a set, but in order
        self.leased: dict[SequenceGroup, int] = {}
        self.lessee = Lessee()

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
        waiting = self.partially_preempted
        kept = () if waiting is None else (waiting,)
        return [*self.running.values(), *kept, *self.reserved, *self.leased]

    def guaranteed_steps(self) -> int:
        """Further steps of the batch that the policy promises."""
        return 0 if self.stepwise else self.memory.guaranteed_steps(self.batch)

    # Getting slots

    def lookup(self, group: SequenceGroup) -> CacheHit:
        """What the cache has of a waiting group, for one attempt to admit it."""
        if group is self.partially_preempted:
            return NO_HIT
        return self.memory.lookup(group.sequences[0])

    def admit(self, group: SequenceGroup, num_tokens: int, plan: Plan, hit: CacheHit) -> Answers:
        """Slots for the first num_tokens tokens of the sequences of the first waiting group, all or
        none; `hit` is what `lookup` found of it.

        The group is running then. One that could never run leaves the queue, and the plan lists it
        as rejected. While it is refused for now, slots that others need less are given back, and it
        is asked again.
        """
        if group is self.partially_preempted:
            return self._resume(group, num_tokens, plan)
        answers = self._ask(group, num_tokens, plan, hit)
        while answers is Refusal.LATER and self.free_for_waiting():
            answers = self._ask(group, num_tokens, plan, self.lookup(group))
        return answers

    def _ask(self, group: SequenceGroup, num_tokens: int, plan: Plan, hit: CacheHit) -> Answers:
        """Admit once. A policy that forks gives slots to the first sequence, which is forked when
        its prompt is computed; one that does not gives every sequence slots for the whole prompt,
        because all but the first are filled by that copy. Sequences of a preempted group differ
        from each other, and are computed one by one.
        """
        prefill_len, differ = group.prefill_len, group.num_generated > 0
        is_split = differ or self.memory.forks is None
        seqs = list(group.sequences) if is_split else group.sequences[:1]
        if len(seqs) > 1:
            num_tokens = prefill_len
        self.not_loaded.discard(group)
        if self.memory.loads is not None and not self.load(group, num_tokens, plan, hit):
            self.refused = group
            return Refusal.LATER
        # Any: compiled code would check the list before `_admitted` explains what is wrong with it
        answers: Any = self.memory.admit(seqs, num_tokens, hit)
        if isinstance(answers, Refusal):
            self._refuse(group, answers, plan)
        else:
            self._seat(group, seqs, self._checked(answers, seqs, prefill_len), num_tokens, plan)
        return answers  # type: ignore[no-any-return]

    def _refuse(self, group: SequenceGroup, refusal: Refusal, plan: Plan) -> None:
        """A group that could never run leaves the queue."""
        self.refused = group
        if refusal.is_final:
            self.refused = None
            plan.reject(self.waiting.popleft(), refusal.reason)

    def _checked(self, answers: object, seqs: list[Sequence], prefill_len: int) -> list[Grant]:
        """The answers, if they are a valid grant for each sequence."""
        if not isinstance(answers, list) or len(answers) != len(seqs):
            expected = "admit() gives a Refusal, or a list of a Grant for each sequence"
            raise wrong_answer(self.policy, answers, expected)
        for seq, grant in zip(seqs, answers, strict=True):
            cached = grant.num_cached if type(grant) is Grant else None
            if type(cached) is not int or not 0 <= cached <= prefill_len:
                raise wrong_answer(
                    self.policy, grant, f"{seq} has {prefill_len} tokens that could be cached"
                )
        return answers

    def _seat(
        self,
        group: SequenceGroup,
        seqs: list[Sequence],
        grants: list[Grant],
        num_tokens: int,
        plan: Plan,
    ) -> None:
        """These sequences of the first waiting group have their slots: it is in prefill now."""
        prefill_len, todo = group.prefill_len, list[Item]()
        if group.num_cached < 0 and not group.num_generated:
            group.num_cached = grants[0].num_cached
        for seq, grant in zip(seqs, grants, strict=True):
            cached = grant.num_cached
            seq.set_counts(num_slots=max(num_tokens, cached), num_stored=cached)
            if group.num_generated or not todo:
                # The last token is computed even if it is cached: it yields the next output token.
                past = min(cached, prefill_len - 1)
                todo.append(Item(seq, prefill_len - past, past))
            if grant.ops is not NO_OPS:
                self.order(grant.ops, plan)
        group.todo, group.resident = todo, seqs
        self.waiting.popleft()
        self.add_running(group, SequenceStatus.PREFILLING)

    def _resume(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answers:
        """The slots that a partially preempted group lacks for num_tokens more tokens, or for all
        that it has.
        """
        seq, estimates = group.sequences[0], self.memory.estimates
        num_tokens = min(group.prefill_len, seq.num_stored + num_tokens)
        fits = estimates is not None and estimates.fits(seq, num_tokens, NO_HIT)
        if not (fits and self.ensure_slots([seq], num_tokens, plan)):
            self.refused = group
            return Refusal.LATER
        group.todo = [Item(seq, group.prefill_len - seq.num_stored, seq.num_stored)]
        self.partially_preempted = None
        self.waiting.popleft()
        self.add_running(group, SequenceStatus.PREFILLING)
        return [GRANTED]

    def load(self, group: SequenceGroup, num_tokens: int, plan: Plan, hit: CacheHit) -> bool:
        """Begin to load what lower tiers have of a waiting group; False where there are no slots
        for it now.
        """
        loads = self.memory.loads
        assert loads is not None, "asked of a policy that loads"
        answer = one_answer(self.policy, loads.load(group.sequences[0], num_tokens, hit))
        if isinstance(answer, Grant):
            self.order(answer.ops, plan)
        return isinstance(answer, Grant)

    def prefetch(self, num_groups: int, plan: Plan) -> None:
        """Load for the first groups that wait, once for each, whether there are slots for those
        before it or not.

        If it depended on these, a span would have to end where an eviction leaves nothing to load
        for one of them.
        """
        for group in islice(self.waiting, num_groups):
            if group not in self.not_loaded:
                continue
            if self.load(group, group.prefill_len, plan, self.lookup(group)):
                self.not_loaded.remove(group)

    def schedule_chunk(self, group: SequenceGroup, new: int, plan: Plan) -> None:
        """The next `new` tokens of the group's prefill run in this plan; a later admission may find
        them.
        """
        todo = group.todo
        seq, left, num_stored = todo.pop(0)
        if new < left:
            todo.insert(0, Item(seq, left - new, num_stored + new))
        plan.chunks.append(Chunk(group, seq, new, num_stored, not todo))
        self.publish(seq, num_stored + new)

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """The first num_tokens tokens of `seq` are in the cache once this iteration has run."""
        if self.memory.publishes is not None:
            self.memory.publishes.publish(seq, num_tokens)
            self.memory_released()

    def ensure_slots(self, seqs: list[Sequence], num_tokens: int, plan: Plan) -> bool:
        """Give sequences of one length, which are in no batch, slots for num_tokens tokens; whether
        they have them.
        """
        missing = num_tokens - seqs[0].num_slots
        if missing <= 0:
            return True
        batch = passing_batch(seqs)
        answer = one_answer(self.policy, self.policy.extend(batch, missing))
        if isinstance(answer, Grant):
            batch.extend(missing)
            self.order(answer.ops, plan)
            if answer.ends_refusals:
                self.memory_released()
        disband(batch)
        return isinstance(answer, Grant)

    def join_batch(self, group: SequenceGroup) -> None:
        """The group decodes with the batch from the next step on."""
        group.status = SequenceStatus.RUNNING
        group.join_batch(self.batch)
        if group.request.beam:
            self.beams[group.request.request_id] = group

    def fork(self, group: SequenceGroup) -> None:
        """The prompt is computed: every sequence starts with it."""
        for child in group.sequences[1:]:
            self._fork(group, group.sequences[0], child)
        group.resident = list(group.sequences)

    def choose_parents(self, group: SequenceGroup, parents: tuple[tuple[int, int], ...]) -> None:
        """A beam group has new candidates: those that did not survive continue from others' tokens
        (Fig. 9).
        """
        for parent, child in parents:
            self._fork(group, group.sequences[parent], group.sequences[child])

    def add_running(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group runs from now on, behind all others."""
        group.status = status
        self.running[group.request.request_id] = group
        self.num_seqs += len(group.sequences)

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        ops = self.memory.fork(parent, child)
        if child.batch is None:  # members of a batch have the same counts already
            child.num_stored = parent.num_stored
            if self.memory.forks is not None:
                child.num_slots = parent.num_slots
        self.forks += 1
        if ops != NO_OPS:
            self.copies.append((group, ops))

    # Hand-overs between engines

    def reserve(self, group: SequenceGroup) -> Answers:
        """Slots for the prompt of a group of one sequence, which another engine computes."""
        seq = group.sequences[0]
        answers: Any = self.memory.admit([seq], group.prefill_len, self.memory.lookup(seq))
        if isinstance(answers, Refusal):
            self.refused = group
            return answers
        grants = self._checked(answers, [seq], group.prefill_len)
        seq.set_counts(num_slots=group.prefill_len, num_stored=grants[0].num_cached)
        group.resident = [seq]
        self.reserved[group] = None
        return grants

    def land(self, group: SequenceGroup) -> None:
        """The prompt of a group with reserved slots is there, and its first output token."""
        del self.reserved[group]
        seq = group.sequences[0]
        seq.num_stored = group.prefill_len
        self.publish(seq, group.prefill_len)
        group.generate()
        self.add_running(group, SequenceStatus.RUNNING)
        self.join_batch(group)

    def abandon(self, group: SequenceGroup) -> None:
        """What was reserved for the group is given back."""
        del self.reserved[group]
        self._release_slots(group)
        self.memory_released()

    # Slots of groups that are over

    def end_leases(self, groups: Collection[SequenceGroup]) -> None:
        """Nobody needs the slots of these groups any more."""
        leases = self.memory.leases
        assert leases is not None, "a policy without leases is refused"
        for group in groups:
            del self.leased[group]
            leases.end_lease(Lease(group.request.request_id))
            for seq in group.resident:
                seq.set_counts(num_slots=0, num_stored=0)
            group.resident = []
        if groups:
            self.memory_released()

    def _lease(self, group: SequenceGroup) -> None:
        """The slots of a group that is over stay until `end_leases`."""
        assert self.memory.leases is not None, "a policy without leases is refused"
        self.leased[group] = 0
        for seq in group.resident:
            self.memory.leases.release(seq, Lease(group.request.request_id))

    # Losing slots

    def leave_batch(self, group: SequenceGroup) -> None:
        """The group decodes no more, if it did."""
        if group.batch is not None:
            self.beams.pop(group.request.request_id, None)
            group.leave_batch()

    def find(self, request_id: int) -> SequenceGroup | None:
        """The group of a request that waits, runs or is swapped out."""
        if group := self.running.get(request_id):
            return group
        queued = (*self.waiting, *self.swapped)
        return next((group for group in queued if group.request.request_id == request_id), None)

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
        """The same of a group that waits, maybe partially preempted, or is swapped out."""
        (self.swapped if group.status is SequenceStatus.SWAPPED else self.waiting).remove(group)
        self.not_loaded.discard(group)
        group.status = status
        if group is self.partially_preempted:
            self.partially_preempted = None
        self._release_slots(group)
        self.memory_released()

    def release(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group stops running and releases its slots: it is finished, or waits again."""
        self._stop_running(group, status)
        self._release_slots(group)
        self.memory_released()

    def _stop_running(self, group: SequenceGroup, status: SequenceStatus) -> None:
        group.status = status
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)
        if self.copies:
            self.copies = [left for left in self.copies if left[0] is not group]

    def _release_slots(self, group: SequenceGroup) -> None:
        if group.status is SequenceStatus.FINISHED and self.lessee.needs(group):
            self._lease(group)
            return
        for seq in group.resident:
            self.policy.release(seq)
            seq.set_counts(num_slots=0, num_stored=0)
        group.resident = []

    def free_for_waiting(self) -> bool:
        """Give back slots that the waiting group or swapped group that is next needs more; whether
        there were any.
        """
        return self.release_all_kept()

    def free_for_running(self, num_tokens: int) -> bool:
        """The same for running groups: about num_tokens slots, before one of them is preempted."""
        return self.shrink_kept(num_tokens)

    def release_all_kept(self) -> bool:
        """The partially preempted group, if there is one, loses the rest of its slots."""
        group = self.partially_preempted
        if group is None:
            return False
        self._release_slots(group)
        self.partially_preempted = None
        self.memory_released()
        return True

    def shrink_kept(self, num_tokens: int) -> bool:
        """The partially preempted group, if there is one, gives back at least num_tokens slots, in
        whole blocks.
        """
        group, truncates = self.partially_preempted, self.memory.truncates
        if group is None or truncates is None:
            return False
        seq = group.sequences[0]
        remaining = round_down(max(seq.num_stored - num_tokens, 0), self._block_size_of(seq))
        if remaining == 0:
            return self.release_all_kept()
        truncates.truncate(seq, seq.num_slots - remaining)
        seq.set_counts(num_slots=remaining, num_stored=remaining)
        self.memory_released()
        return True

    def _block_size_of(self, seq: Sequence) -> int:
        footprint = self.memory.footprint(seq)
        return footprint.size if isinstance(footprint, Granular) else 1

    def finish_ended(self) -> None:
        """Those that have ended give their slots back, in order of admission."""
        ended = self.ended
        if len(ended) > 1:
            ended = [group for group in self.running.values() if group in self.ended]
        for group in ended:
            self.leave_batch(group)
            self.release(group, SequenceStatus.FINISHED)
        self.ended.clear()

    def before_preemption(self, group: SequenceGroup) -> None:
        """Called before a group that has left the batch loses its slots."""

    def preempt_by_recompute(self, group: SequenceGroup) -> None:
        """The group loses its slots, and waits at the head of the queue to be computed again."""
        self.before_preemption(group)
        self.release(group, SequenceStatus.WAITING)
        self._wait_again(group)

    def preempt_tail(self, group: SequenceGroup, num_tokens: int) -> None:
        """The same, but a single sequence loses only its last num_tokens tokens or more, where no
        other group is partially preempted.
        """
        if self.partially_preempted is not None:
            self.preempt_by_recompute(group)
            return
        self.before_preemption(group)
        self._stop_running(group, SequenceStatus.WAITING)
        self.partially_preempted = group
        self.shrink_kept(num_tokens)
        self._wait_again(group)

    def _wait_again(self, group: SequenceGroup) -> None:
        for seq in group.sequences:
            seq.num_preemptions += 1
        group.todo = []
        group.num_recomputes += 1
        self.waiting.appendleft(group)

    def swap_out(self, group: SequenceGroup, plan: Plan) -> bool:
        """Move the group to the host; False where the host pool is full."""
        swaps = self.memory.swaps
        assert swaps is not None, "asked of a policy that swaps"
        answer = one_answer(self.policy, swaps.move(group.sequences, HOST))
        if isinstance(answer, Refusal):
            return False
        self.order(answer.ops, plan)
        group.status = SequenceStatus.SWAPPED
        group.num_swaps += 1
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)
        self.swapped.appendleft(group)
        return True
