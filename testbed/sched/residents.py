"""The moves of a group between waiting, running, swapped and finished; every scheduler has one of these."""

from collections import deque

from testbed.core.batch import Batch
from testbed.core.sequence import Item, Sequence, SequenceGroup, SequenceStatus
from testbed.core.slots import DEVICE, HOST, NO_OPS, Answers, Grant, Ops, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.asking import forked, more_room, one_answer, promised_room, room_for, wrong_answer
from testbed.sched.plan import Chunk, Plan
from testbed.sched.preemption import PreemptionRule, Recovery


class Residents:
    """Keeps groups and batch in step with what the policy holds.

    waiting: not resident, in order of service, preempted groups in front. running: resident, in order of admission.
    swapped: on the host, the first to come back in front. batch: the sequences that decode in lockstep; beams: those of
    its groups that search with beams. num_seqs counts the resident sequences.
    arriving: groups that the next plan does not see yet; ended: those that have their whole output and keep their place
    and room until results are in. Both are empty unless a scheduler plans ahead.
    refused is the group that was refused since room was last freed: by clause 2 of the contract it would be refused
    again, so nobody asks. resume_refused says the same of the first swapped group.
    """

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
        self.policy = policy
        self.preemption = preemption
        self.waiting: deque[SequenceGroup] = deque()
        self.running: dict[int, SequenceGroup] = {}
        self.swapped: deque[SequenceGroup] = deque()
        self.batch = Batch()
        self.beams: dict[int, SequenceGroup] = {}
        self.num_seqs = 0
        self.arriving: list[SequenceGroup] = []
        self.ended: list[SequenceGroup] = []
        self.refused: SequenceGroup | None = None
        self.resume_refused = False
        self._copies: list[tuple[SequenceGroup, Ops]] = []
        self._forks = 0

    def new_plan(self) -> Plan:
        """An empty plan but for the forks that have happened, and the copies that they have left to do first."""
        plan = Plan()
        plan.forks, self._forks = self._forks, 0
        if self._copies:
            plan.ops, self._copies = [ops for _, ops in self._copies], []
        return plan

    def admit(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answers:
        """Room for the first num_tokens tokens of the group's sequences, all or none; the group is resident then.

        A policy that shares gives room to the first sequence, which is forked when its prompt is computed; one that
        does not gives every sequence room for the whole prompt, because all but the first get it by that fork. Those
        that come back differ by now, and are computed one by one.
        """
        prefill_len = group.prefill_len
        differ = prefill_len > group.request.prompt_len
        seqs = list(group.sequences) if differ or not self.policy.shares else group.sequences[:1]
        if len(seqs) > 1:
            num_tokens = prefill_len
        grants = room_for(self.policy, seqs, num_tokens, prefill_len)
        if isinstance(grants, Refusal):
            self.refused = group if grants is Refusal.LATER else None
            return grants
        group.resident, group.todo = seqs, []
        for seq, grant in zip(seqs if differ else seqs[:1], grants, strict=False):
            # The last token is computed even if it is cached: it yields the next output token.
            past = min(grant.num_cached, prefill_len - 1)
            group.todo.append(Item(seq, prefill_len - past, past))
        for grant in grants:
            self.order(grant.ops, plan)
        self._arrive(group, SequenceStatus.PREFILLING)
        return grants

    def place(self, group: SequenceGroup, new: int, plan: Plan, padding: int = 0) -> None:
        """The next `new` tokens of the group's prompt phase run in this plan; whoever asks next may find them."""
        seq, left, stored = group.todo.pop(0)
        if new < left:
            group.todo.insert(0, Item(seq, left - new, stored + new))
        plan.chunks.append(Chunk(group, seq, new, stored, not group.todo, padding))
        self.policy.computed(seq, stored + new)
        self._published()

    def make_room(self, seq: Sequence, num_tokens: int, plan: Plan) -> bool:
        """See to it that a sequence in its prompt phase has room for num_tokens tokens."""
        missing = num_tokens - seq.room
        return missing <= 0 or self._more_room([seq], missing, plan)

    def decode(self, plan: Plan) -> None:
        """Extend the batch by one step, preempting until it fits."""
        batch = self.batch
        while num_seqs := len(batch.sequences):
            answer = self.policy.extend(batch, 1)
            if isinstance(answer, Grant):
                batch.extend(1)
                plan.decode_seqs = num_seqs
                plan.decode_longest = batch.longest
                plan.decode_context = batch.context
                if self.policy.drops_tokens:
                    kept = [self.policy.stored(seq.room) for seq in batch]
                    plan.decode_context, plan.decode_longest = sum(kept), max(kept)
                if answer.ops is not NO_OPS:
                    self.order(answer.ops, plan)
                return
            one_answer(self.policy, answer)
            self.preempt(plan)

    def resume(self, plan: Plan) -> None:
        """Bring swapped groups back, the earliest first, as far as there is room; none right after a preemption.

        They step with the batch at once.
        """
        while self.swapped and not plan.took_room and not self.resume_refused:
            group = self.swapped[0]
            answer = one_answer(self.policy, self.policy.move(group.sequences, DEVICE))
            if isinstance(answer, Refusal):
                self.resume_refused = True
                return
            self.swapped.popleft()
            self._arrive(group, SequenceStatus.RUNNING)
            self.order(answer.ops, plan)
            plan.resumed.append(group)
            for seq in group.sequences:
                self.policy.computed(seq, seq.stored)
            self._published()
            self._step(group, plan)

    def preempt(self, plan: Plan) -> None:
        """Take room back from the rule's victim, or from groups that have ended."""
        if self.ended and self.settle_early(plan):
            return
        running = self.running
        if self.ended:
            running = {key: group for key, group in running.items() if group not in self.ended}
        group = self.preemption.victim(running, self.batch)
        if not isinstance(group, SequenceGroup) or self.running.get(group.request.request_id) is not group:
            raise wrong_answer(self.preemption, group, "victim() gives a group that is resident")
        self.take_back(group, plan)

    def take_back(self, group: SequenceGroup, plan: Plan) -> None:
        """Preempt this group."""
        decoding = group.status is SequenceStatus.RUNNING
        if decoding:
            self.leave(group)
        plan.preempted.append(group)
        recovery = self.preemption.recovery(group) if decoding else Recovery.RECOMPUTE
        if not isinstance(recovery, Recovery):
            raise wrong_answer(self.preemption, recovery, "recovery() gives a Recovery")
        swaps = recovery is Recovery.SWAP and self.policy.moves_tiers
        if not (swaps and self._swap_out(group, plan)):
            self._lose(group)
        self.room_freed()

    def join(self, group: SequenceGroup) -> None:
        """The group decodes with the batch from the next step on."""
        group.status = SequenceStatus.RUNNING
        group.join(self.batch)
        if group.request.beam:
            self.beams[group.request.request_id] = group

    def leave(self, group: SequenceGroup) -> None:
        """The group no longer decodes."""
        self.beams.pop(group.request.request_id, None)
        group.leave()

    def fork(self, group: SequenceGroup) -> None:
        """The prompt is computed: every sequence starts with it."""
        for child in group.sequences[1:]:
            self._fork(group, group.sequences[0], child)
        group.resident = list(group.sequences)

    def choose_parents(self, group: SequenceGroup, parents: tuple[tuple[int, int], ...]) -> None:
        """A beam group has new candidates: those that did not survive go on from others' tokens (Fig. 9)."""
        for parent, child in parents:
            self._fork(group, group.sequences[parent], group.sequences[child])

    def finish(self, group: SequenceGroup) -> None:
        """Everything is generated: give the room back."""
        self._depart(group, SequenceStatus.FINISHED)
        self._release(group)

    def settle(self) -> bool:
        """Results are in: who has ended gives the room back, and who has arrived is waiting. Whether there was any."""
        pending = bool(self.ended or self.arriving)
        self._let_go()
        self.waiting.extend(self.arriving)
        self.arriving.clear()
        return pending

    def settle_early(self, plan: Plan) -> bool:
        """Groups that have ended give way where the last that came is one of them, or at most one other is left."""
        gives_way = bool(self.ended) and (
            next(reversed(self.running.values())) in self.ended or len(self.running) <= len(self.ended) + 1
        )
        if gives_way:
            plan.short = True
            self._let_go()
        return gives_way

    def order(self, ops: Ops, plan: Plan) -> None:
        """Have the engine perform `ops` before the iteration."""
        if ops:
            plan.ops.append(ops)

    def room_freed(self) -> None:
        """Something was released, moved out or published: whoever was refused may ask again."""
        self.refused, self.resume_refused = None, False

    def extend_promised(self, steps: int) -> Grant:
        """So many steps more have happened, within the horizon that the policy has promised."""
        return promised_room(self.policy, self.batch, steps)

    def _published(self) -> None:
        """What was declared computed may be what somebody was refused for."""
        if self.policy.caches_prefixes:
            self.room_freed()

    def _arrive(self, group: SequenceGroup, status: SequenceStatus) -> None:
        group.status = status
        self.running[group.request.request_id] = group
        self.num_seqs += len(group.sequences)

    def _depart(self, group: SequenceGroup, status: SequenceStatus) -> None:
        group.status = status
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)

    def _let_go(self) -> None:
        for group in self.ended:
            if group.sequences[0].batch is not None:
                self.leave(group)
            self.finish(group)
        self.ended.clear()

    def _release(self, group: SequenceGroup) -> None:
        for seq in group.resident:
            self.policy.release(seq)
            seq.room = seq.stored = 0
        group.resident = []
        self._copies = [kept for kept in self._copies if kept[0] is not group] if self._copies else []
        self.room_freed()

    def _lose(self, group: SequenceGroup) -> None:
        """Recompute: prompt and generated tokens go back to the head of the queue."""
        self._depart(group, SequenceStatus.WAITING)
        self._release(group)
        for seq in group.sequences:
            seq.num_preemptions += 1
        group.todo = []
        group.num_recomputes += 1
        self.waiting.appendleft(group)

    def _swap_out(self, group: SequenceGroup, plan: Plan) -> bool:
        """Move the group to the host; False where the host pool is full."""
        answer = one_answer(self.policy, self.policy.move(group.sequences, HOST))
        if isinstance(answer, Refusal):
            return False
        self.order(answer.ops, plan)
        self._depart(group, SequenceStatus.SWAPPED)
        group.num_swaps += 1
        self.swapped.appendleft(group)
        return True

    def _step(self, group: SequenceGroup, plan: Plan) -> None:
        """One more token for each sequence of a group that is back; without room for it the group only joins."""
        if self._more_room(group.sequences, 1, plan):
            read = self.policy.stored(group.sequences[0].room)
            plan.decode_seqs += len(group.sequences)
            plan.decode_context += len(group.sequences) * read
            plan.decode_longest = max(plan.decode_longest, read)

    def _more_room(self, seqs: list[Sequence], num_tokens: int, plan: Plan) -> bool:
        """num_tokens more slots for sequences that are in no batch."""
        answer = more_room(self.policy, seqs, num_tokens)
        if isinstance(answer, Grant):
            self.order(answer.ops, plan)
        return isinstance(answer, Grant)

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        ops = forked(self.policy, parent, child)
        self._forks += 1
        if ops is not NO_OPS and ops:
            self._copies.append((group, ops))
