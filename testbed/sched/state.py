"""The groups of a scheduler and their memory, kept consistent; every scheduler has one of these."""

from collections.abc import Collection
from itertools import islice

from testbed.core.sequence import (
    FINISHED,
    PREFILLING,
    WAITING,
    Item,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from testbed.core.slots import (
    GRANTED,
    NO_HIT,
    NO_OPS,
    Answers,
    CacheHit,
    Grant,
    Granular,
    Lease,
    Ops,
    Refusal,
    record,
    round_down,
)
from testbed.cost.model import UNBOUNDED
from testbed.memory.capabilities import capabilities_of
from testbed.memory.policy import MemoryPolicy
from testbed.sched.group_slots import (
    begin_prefill,
    extend_to,
    forget_slots,
    release_slots,
    request_first_slots,
    sequences_to_admit,
)
from testbed.sched.orders import Order
from testbed.sched.pending_forks import PendingForks
from testbed.sched.plan import Chunk, Plan, one_answer
from testbed.sched.queues import Queues
from testbed.sched.retention import (
    Retention,
    continued_by,
    last_in_rank,
    next_expiry,
    of_session,
)


class SchedulerState(Queues):
    """The queues, and the slots of the groups in them: a group changes its queue and its slots
    together, and the counts of its sequences change by the policy's answers alone.

    Attributes:
        policy: the memory policy, for the calls that every policy answers.
        memory: what else it can do.
        pending_forks: sequences forked since the last plan.
        not_loaded: groups that have come, for which nothing was loaded yet; empty unless the
            scheduler prefetches.
        refused: the group that was refused since memory was last released. By clause 2 of the
            contract it would be refused again, so the scheduler does not retry.
        swap_in_refused: the first swapped group was refused since memory was last released.
        partially_preempted: the waiting group, if any, that has lost the end of its tokens only.
        stepwise: no plan may be repeated, so that every step is seen.
        reserved: groups in no queue, whose prompts another engine hands over
            (testbed/sched/handed_over.py).
        leased: groups that are over and keep their slots, and until when (ps; 0: not known yet).
        leases_all: every answered group keeps its slots, since another engine is to have them.
        retention: how long answered groups of sessions keep their slots; None: not at all.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.memory = capabilities_of(policy)
        self.pending_forks = PendingForks(self.memory)
        self.not_loaded: set[SequenceGroup] = set()  # never iterated over
        self.refused: SequenceGroup | None = None
        self.swap_in_refused = False
        self.partially_preempted: SequenceGroup | None = None
        self.stepwise = False
        self.reserved: dict[SequenceGroup, None] = {}  # as a set, but in order
        self.leased: dict[SequenceGroup, int] = {}
        self.leases_all = False
        self.retention: Retention | None = None

    def follow(self, order: Order) -> None:
        """Serve in this order from now on, before any request."""
        self.ranking = order
        if order.retains_s:
            self.retention = Retention(self.memory, order.retains_s)

    def order(self, ops: Ops, plan: Plan) -> None:
        """Have the engine perform `ops` before the iteration."""
        if ops != NO_OPS:
            plan.ops.append(ops)

    def memory_released(self) -> None:
        """Memory was released, moved out or published, or a transfer has landed: a refused request
        may be retried.
        """
        self.refused, self.swap_in_refused = None, False

    def with_slots(self) -> list[SequenceGroup]:
        """The groups with slots on the device, running or waiting."""
        waiting = self.partially_preempted
        kept = () if waiting is None else (waiting,)
        return [*self.running.values(), *kept, *self.loading, *self.reserved, *self.leased]

    def guaranteed_steps(self) -> int:
        """Further steps of the batch that the policy promises."""
        predicts = self.memory.predicts
        return 0 if self.stepwise or predicts is None else predicts.guaranteed_steps(self.batch)

    # Getting slots

    def lookup(self, group: SequenceGroup) -> CacheHit:
        """The cached part of a waiting group, for one attempt to admit it."""
        if group is self.partially_preempted:
            return NO_HIT
        publishes = self.memory.publishes
        return NO_HIT if publishes is None else publishes.lookup(group.sequences[0])

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
        """Admit once: ask the policy, and do what its answer says."""
        seqs = sequences_to_admit(group, policy_forks=self.memory.forks is not None)
        if len(seqs) > 1:  # they are filled by a copy of the whole prompt, or each from its start
            num_tokens = group.prefill_len
        self.not_loaded.discard(group)
        if self.memory.transfers is not None and not self.load(group, num_tokens, plan, hit):
            self.refused = group
            return Refusal.LATER
        prefill_len = group.prefill_len
        answers = request_first_slots(self.memory, seqs, prefill_len, num_tokens, hit)
        if isinstance(answers, Refusal):
            self.refuse(group, answers, plan)
            return answers
        begin_prefill(group, seqs, answers, num_tokens, prefill_len)
        for grant in answers:
            if grant.ops is not NO_OPS:
                self.order(grant.ops, plan)
        self.begin_running(group)
        return answers

    def refuse(self, group: SequenceGroup, refusal: Refusal, plan: Plan) -> None:
        """The first waiting group was refused; if it could never run, it leaves the queue."""
        self.refused = group
        if refusal.is_final:
            self.refused = None
            plan.reject(self.waiting.popleft(), refusal.reason)

    def begin_running(self, group: SequenceGroup) -> None:
        """The first waiting group is in prefill now."""
        self.waiting.popleft()
        self.add_running(group, PREFILLING)
        if self.retention is not None:
            self.end_leases(continued_by(self.leased, group.request))

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
        self.begin_running(group)
        return [GRANTED]

    def load(self, group: SequenceGroup, num_tokens: int, plan: Plan, hit: CacheHit) -> bool:
        """Begin to load what lower tiers have of a waiting group; False if there are no slots
        for it now.
        """
        transfers = self.memory.transfers
        assert transfers is not None, "asked of a policy that loads"
        answer = one_answer(self.policy, transfers.load(group.sequences[0], num_tokens, hit))
        if isinstance(answer, Grant):
            self.order(answer.ops, plan)
        return isinstance(answer, Grant)

    def prefetch(self, num_groups: int, plan: Plan) -> None:
        """Load for the first groups that wait, once for each, whether there are slots for those
        before it or not.

        If it depended on these, a span would have to end if an eviction leaves nothing to load
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
        chunk = self.cut_chunk(group, new, plan)
        self.publish(chunk.seq, chunk.num_stored + new)

    def cut_chunk(self, group: SequenceGroup, new: int, plan: Plan) -> Chunk:
        """`schedule_chunk` of tokens that are not findable yet."""
        todo = group.todo
        seq, left, num_stored = todo[0]
        if new < left:
            todo[0] = record(Item, (seq, left - new, num_stored + new))
        else:
            del todo[0]
        chunk: Chunk = record(Chunk, (group, seq, new, num_stored, not todo, 0))
        plan.chunks.append(chunk)
        return chunk

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """The first num_tokens tokens of `seq` are in the cache once this iteration has run."""
        if self.memory.publishes is not None:
            self.memory.publishes.publish(seq, num_tokens)
            self.refused, self.swap_in_refused = None, False  # as `memory_released`

    def ensure_slots(self, seqs: list[Sequence], num_tokens: int, plan: Plan) -> bool:
        """Give sequences of one length, which are in no batch, slots for num_tokens tokens; whether
        they have them.
        """
        if seqs[0].slots_offset >= num_tokens:  # as `num_slots`, outside a batch
            return True
        answer = extend_to(self.policy, seqs, num_tokens)
        if isinstance(answer, Refusal):
            return False
        if answer.ops is not NO_OPS:
            self.order(answer.ops, plan)
        if answer.ends_refusals:
            self.memory_released()
        return True

    def fork(self, group: SequenceGroup) -> None:
        """The prompt is computed: every sequence starts with it."""
        for child in group.sequences[1:]:
            self.pending_forks.fork(group, group.sequences[0], child)
        group.resident = list(group.sequences)

    def choose_parents(self, group: SequenceGroup, parents: tuple[tuple[int, int], ...]) -> None:
        """A beam group has new candidates: others continue from survivors' tokens (Fig. 9)."""
        if group.batch is not None:
            self.pending_forks.fork_members(group, parents)
            return
        seqs = group.sequences
        for parent, child in parents:
            self.pending_forks.fork(group, seqs[parent], seqs[child])

    # Slots of groups that are over

    def end_leases(self, groups: Collection[SequenceGroup]) -> None:
        """Releases the slots of these groups."""
        leases = self.memory.leases
        assert leases is not None, "a policy without leases is refused"
        for group in groups:
            del self.leased[group]
            leases.end_lease(Lease(group.request_id))
            forget_slots(group)
        if groups:
            self.memory_released()

    def _lease(self, group: SequenceGroup) -> None:
        """The slots of a group that is over stay until `end_leases`."""
        assert self.memory.leases is not None, "a policy without leases is refused"
        self.leased[group] = 0
        for seq in group.resident:
            self.memory.leases.release(seq, Lease(group.request_id))

    # Losing slots

    def remove(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group leaves for good, wherever it is, and gives back what it holds: it was
        cancelled, or has ended although it was preempted since.
        """
        self.leave_batch(group)
        if group.request_id in self.running:
            self.release(group, status)
        else:
            self._remove_from_queue(group, status)
        group.todo = []
        if group in self.ended:
            self.ended.remove(group)

    def _remove_from_queue(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """`remove` for a group that waits, maybe partially preempted, or is swapped out."""
        self.leave_queue(group)
        self.not_loaded.discard(group)
        group.status = status
        if group is self.partially_preempted:
            self.partially_preempted = None
        self._release_slots(group)
        self.memory_released()

    def release(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group stops running and releases its slots: it is finished, or waits again."""
        group.status = status  # as `_stop_running`
        del self.running[group.request_id]
        self.num_seqs -= len(group.sequences)
        if self.pending_forks.copies:
            self.pending_forks.drop_copies_of(group)
        self._release_slots(group)
        self.refused, self.swap_in_refused = None, False  # as `memory_released`

    def _stop_running(self, group: SequenceGroup, status: SequenceStatus) -> None:
        self.remove_running(group, status)
        if self.pending_forks.copies:
            self.pending_forks.drop_copies_of(group)

    def _release_slots(self, group: SequenceGroup) -> None:
        is_retained = self.retention is not None and group.request.session is not None
        if group.status is FINISHED and (self.leases_all or is_retained):
            self._lease(group)
        else:
            release_slots(self.policy, group)

    def free_for_waiting(self) -> bool:
        """Give back slots that the waiting group or swapped group that is next needs more; whether
        there were any. Retained slots are given back only if nothing runs.
        """
        return self.release_all_kept() or (not self.running and self._release_last_retained())

    def free_for_running(self, num_tokens: int) -> bool:
        """Give back about num_tokens slots for running groups, before one of them is preempted."""
        return self.shrink_kept(num_tokens) or self._release_last_retained()

    def _release_last_retained(self) -> bool:
        """End the lease of the retained group that ranks last; whether there is one."""
        if self.retention is None or not self.leased:
            return False
        self.end_leases(last_in_rank(self.leased))
        return True

    def expire(self, now_ps: int) -> int:
        """Release what has been retained for its time; when the next group will have been."""
        if self.retention is None:
            return UNBOUNDED
        self.end_leases(self.retention.expired(self.leased, now_ps))
        return next_expiry(self.leased)

    def close_session(self, session: int) -> None:
        """The session has ended, and retains nothing."""
        if self.retention is not None:
            self.end_leases(of_session(self.leased, session))
        self.memory.close_session(session)

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
        """Groups that have ended give their slots back, in order of admission."""
        ended = self.ended
        if len(ended) > 1:
            ended = [group for group in self.running.values() if group in self.ended]
        for group in ended:
            self.leave_batch(group)
            self.release(group, FINISHED)
        self.ended.clear()

    def before_preemption(self, group: SequenceGroup) -> None:
        """Called before a group that has left the batch loses its slots."""

    def preempt_by_recompute(self, group: SequenceGroup) -> None:
        """The group loses its slots, and waits at the head of the queue to be computed again."""
        self.before_preemption(group)
        self.release(group, WAITING)
        self._wait_again(group)

    def preempt_tail(self, group: SequenceGroup, num_tokens: int) -> None:
        """Preempt by recompute, but a single sequence loses only its last num_tokens tokens or
        more, if no other group is partially preempted.
        """
        if self.partially_preempted is not None:
            self.preempt_by_recompute(group)
            return
        self.before_preemption(group)
        self._stop_running(group, WAITING)
        self.partially_preempted = group
        self.shrink_kept(num_tokens)
        self._wait_again(group)

    def _wait_again(self, group: SequenceGroup) -> None:
        for seq in group.sequences:
            seq.num_preemptions += 1
        group.todo = []
        group.num_recomputes += 1
        self.waiting.appendleft(group)
