"""The moves of a group between waiting, running, swapped and finished; every scheduler has one of
these.
"""

from itertools import islice
from typing import Any

from testbed.core.sequence import (
    Item,
    Sequence,
    SequenceGroup,
    SequenceStatus,
    disband,
    passing_batch,
)
from testbed.core.slots import GRANTED, NO_OPS, Answers, Grant, Refusal, record
from testbed.sched.groups import Groups
from testbed.sched.plan import Chunk, Plan, one_answer, wrong_answer


class SchedulerState(Groups):
    """The groups of a scheduler, and every way in which they get slots and run."""

    def admit(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answers:
        """Slots for the first num_tokens tokens of the sequences of the first waiting group, all or
        none.

        The group is running then. One that could never run leaves the queue, and the plan lists it
        as rejected. A policy that shares gives slots to the first sequence, which is forked when
        its prompt is computed; one that does not gives every sequence slots for the whole prompt,
        because all but the first are filled by that fork. Sequences of a preempted group differ
        from each other, and are computed one by one.
        """
        if group is self.kept:
            return self._resume(group, num_tokens, plan)
        policy, prefill_len, differ = (
            self.policy,
            group.prefill_len,
            group.generated_offset > 0,
        )  # at rest
        seqs = list(group.sequences) if differ or not policy.shares else group.sequences[:1]
        if len(seqs) > 1:
            num_tokens = prefill_len
        if self.unloaded:
            self.unloaded.discard(group)
        if policy.moves_in_background and not self.load(group, num_tokens, plan):
            self.refused = group
            return Refusal.LATER
        grants: Any = policy.admit(
            seqs, num_tokens
        )  # Any, for the compiler would check grants before this method
        if not isinstance(grants, list) or len(grants) != len(seqs):
            return self._refused(group, num_tokens, plan, grants)
        todo: list[Item] = []
        for seq, grant in zip(seqs, grants, strict=True):
            cached = grant.num_cached if type(grant) is Grant else None
            if type(cached) is not int or not 0 <= cached <= prefill_len:
                raise wrong_answer(
                    policy, grant, f"{seq} has {prefill_len} tokens that could be cached"
                )
            seq.stored_offset = cached  # at rest
            seq.slots_offset = num_tokens if num_tokens > cached else cached
            if differ or not todo:
                # The last token is computed even if it is cached: it yields the next output token.
                past = cached if cached < prefill_len else prefill_len - 1
                todo.append(record(Item, (seq, prefill_len - past, past)))
            if grant.ops is not NO_OPS:
                self.order(grant.ops, plan)
        group.todo, group.resident = todo, seqs
        self.waiting.popleft()
        self.add_running(group, SequenceStatus.PREFILLING)
        return grants

    def _refused(
        self, group: SequenceGroup, num_tokens: int, plan: Plan, refusal: object
    ) -> Answers:
        """What another group has kept may be taken for this one; one that could never run leaves
        the queue.
        """
        if not isinstance(refusal, Refusal):
            expected = "admit() gives a Refusal, or a list of a Grant for each sequence"
            raise wrong_answer(self.policy, refusal, expected)
        self.refused = group
        if refusal is Refusal.NEVER:
            self.refused = None
            plan.rejected.append(self.waiting.popleft())
        elif refusal is Refusal.LATER and self.take_kept():
            return self.admit(group, num_tokens, plan)
        return refusal

    def _resume(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answers:
        """The slots that a group with kept ones lacks for num_tokens more tokens, or for all that
        it has.
        """
        seq = group.sequences[0]
        num_tokens = min(group.prefill_len, seq.num_stored + num_tokens)
        if not (self.policy.fits(seq, num_tokens) and self.ensure_slots([seq], num_tokens, plan)):
            self.refused = group
            return Refusal.LATER
        group.todo = [Item(seq, group.prefill_len - seq.num_stored, seq.num_stored)]
        self.kept = None
        self.waiting.popleft()
        self.add_running(group, SequenceStatus.PREFILLING)
        return [GRANTED]

    def load(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> bool:
        """Begin to load what lower tiers have of a waiting group; False where there are no slots
        for it now.
        """
        answer = one_answer(self.policy, self.policy.load(group.sequences[0], num_tokens))
        if isinstance(answer, Grant):
            self.order(answer.ops, plan)
        return isinstance(answer, Grant)

    def prefetch(self, plan: Plan) -> None:
        """Load for the first groups that wait, once for each, whether there are slots for those
        before it or not.

        If it depended on these, a span would have to end where an eviction leaves nothing to load
        for one of them.
        """
        for group in islice(self.waiting, self.policy.prefetches):
            if group in self.unloaded and self.load(group, group.prefill_len, plan):
                self.unloaded.remove(group)

    def schedule_chunk(self, group: SequenceGroup, new: int, plan: Plan) -> None:
        """The next `new` tokens of the group's prefill run in this plan; a later admission may find
        them.
        """
        policy, todo = self.policy, group.todo
        seq, left, num_stored = todo.pop(0)
        if new < left:
            todo.insert(0, record(Item, (seq, left - new, num_stored + new)))
        plan.chunks.append(record(Chunk, (group, seq, new, num_stored, not todo, 0)))
        policy.publish(seq, num_stored + new)
        if policy.caches_prefixes:
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
            if self.policy.returns_slots:
                self.memory_released()
        disband(batch)
        return isinstance(answer, Grant)

    def join_batch(self, group: SequenceGroup) -> None:
        """The group decodes with the batch from the next step on."""
        batch = group.batch = self.batch
        group.status = SequenceStatus.RUNNING
        group.generated_offset -= batch.steps
        for seq in group.sequences:
            batch.add(seq)
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
        group.status = status
        self.running[group.request.request_id] = group
        self.num_seqs += len(group.sequences)

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        ops = self.policy.fork(parent, child)
        if child.batch is None:  # members of a batch have the same counts already
            child.num_stored = parent.num_stored
            if self.policy.shares:
                child.num_slots = parent.num_slots
        self.forks += 1
        if ops != NO_OPS:
            self.copies.append((group, ops))
