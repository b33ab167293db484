"""The moves of a group between waiting, running, swapped and finished; every scheduler has one of these."""

from collections import deque

from testbed.core.batch import Batch, disband, passing_batch
from testbed.core.errors import PlugInError
from testbed.core.sequence import Item, Sequence, SequenceGroup, SequenceStatus
from testbed.core.slots import DEVICE, HOST, NO_OPS, Answer, Answers, Grant, Ops, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Chunk, Plan
from testbed.sched.preemption import PreemptionRule, Recovery

ANSWERS = (Grant, Refusal)


class Residents:
    """Keeps groups and batch in step with what the policy holds.

    waiting: not resident, in order of service, preempted groups in front. running: resident, in order of admission.
    swapped: on the host, the first to come back in front. batch: the sequences that decode in lockstep; beams: those of
    its groups that search with beams. num_seqs counts the resident sequences.
    refused is the request that was refused since room was last freed: by clause 2 of the contract it would be refused
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
        self.refused: int | None = None
        self.resume_refused = False
        self._copies: list[tuple[SequenceGroup, Ops]] = []

    def new_plan(self) -> Plan:
        """An empty plan but for the copies that forks have left to do, before anything else moves."""
        plan = Plan()
        if self._copies:
            plan.ops, self._copies = [ops for _, ops in self._copies], []
        return plan

    def admit(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answers:
        """Room for the first num_tokens tokens of the group's sequences, all or none; the group is resident then.

        A policy that shares gives room to the first sequence, which is forked when its prompt is computed; one that
        does not reserves for every sequence. Those that come back differ by now, and are computed one by one.
        """
        prefill_len = group.prefill_len
        differ = prefill_len > group.request.prompt_len
        seqs = list(group.sequences) if differ or not self.policy.shares else group.sequences[:1]
        if differ and len(seqs) > 1:
            num_tokens = prefill_len
        answers = self.policy.admit(seqs, num_tokens)
        if isinstance(answers, Refusal):
            if answers is Refusal.LATER:
                self.refused = group.request.request_id
            return answers
        self._check_grants(answers, seqs, prefill_len)
        for seq, grant in zip(seqs, answers, strict=True):
            if grant.ops is not NO_OPS:
                self.order(grant.ops, plan)
            seq.stored = cached = grant.num_cached
            seq.room = num_tokens if num_tokens > cached else cached
        group.resident = seqs
        group.todo = [_item(seq, prefill_len) for seq in (seqs if differ else seqs[:1])]
        self._arrive(group, SequenceStatus.PREFILLING)
        return answers

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
        return missing <= 0 or self._extend_alone([seq], missing, plan)

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
            self._one(answer)
            self.preempt(plan)

    def resume(self, plan: Plan) -> None:
        """Bring swapped groups back, the earliest first, as far as there is room; none right after a preemption.

        They step with the batch at once.
        """
        while self.swapped and not plan.preempted and not self.resume_refused:
            group = self.swapped[0]
            answer = self._one(self.policy.move(group.sequences, DEVICE))
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
        """Take room back from the rule's victim."""
        group = self.preemption.victim(self.running, self.batch)
        if self.running.get(group.request.request_id) is not group:
            raise PlugInError(f"{type(self.preemption).__name__} chose {group}, which is not resident")
        decoding = group.status is SequenceStatus.RUNNING
        if decoding:
            self.leave(group)
        plan.preempted.append(group)
        swaps = decoding and self.preemption.recovery(group) is Recovery.SWAP and self.policy.moves_tiers
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

    def order(self, ops: Ops, plan: Plan) -> None:
        """Have the engine perform `ops` before the iteration."""
        if ops:
            plan.ops.append(ops)

    def room_freed(self) -> None:
        """Something was released, moved out or published: whoever was refused may ask again."""
        self.refused, self.resume_refused = None, False

    def extend_promised(self, steps: int) -> Grant:
        """So many steps more have happened, within the horizon that the policy has promised."""
        answer = self.policy.extend(self.batch, steps)
        if isinstance(answer, Grant) and (answer.ops is NO_OPS or not answer.ops):
            self.batch.extend(steps)
            return answer
        name = type(self.policy).__name__
        raise PlugInError(f"{name} promised {steps} more steps by horizon() and then answered {self._one(answer)}")

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
        answer = self._one(self.policy.move(group.sequences, HOST))
        if isinstance(answer, Refusal):
            return False
        self.order(answer.ops, plan)
        self._depart(group, SequenceStatus.SWAPPED)
        group.num_swaps += 1
        self.swapped.appendleft(group)
        return True

    def _step(self, group: SequenceGroup, plan: Plan) -> None:
        """One more token for each sequence of a group that is back; without room for it the group only joins."""
        if self._extend_alone(group.sequences, 1, plan):
            read = self.policy.stored(group.sequences[0].room)
            plan.decode_seqs += len(group.sequences)
            plan.decode_context += len(group.sequences) * read
            plan.decode_longest = max(plan.decode_longest, read)

    def _extend_alone(self, seqs: list[Sequence], num_tokens: int, plan: Plan) -> bool:
        """num_tokens more slots for sequences that are in no batch."""
        batch = passing_batch(seqs)
        answer = self._one(self.policy.extend(batch, num_tokens))
        if isinstance(answer, Grant):
            batch.extend(num_tokens)
            self.order(answer.ops, plan)
        disband(batch)
        return isinstance(answer, Grant)

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        ops = self.policy.fork(parent, child)
        if self.policy.shares and child.batch is None:
            child.room = parent.room
        if child.batch is None:
            child.stored = parent.stored
        if ops is not NO_OPS and ops:
            self._copies.append((group, ops))

    def _one(self, answer: Answer) -> Answer:
        if not isinstance(answer, ANSWERS):
            raise PlugInError(f"{type(self.policy).__name__} answered {answer!r}, which is neither Grant nor Refusal")
        return answer

    def _check_grants(self, answers: object, seqs: list[Sequence], prefill_len: int) -> None:
        """Raise PlugInError unless there is a grant for each sequence, of tokens that it has."""
        name = type(self.policy).__name__
        if not isinstance(answers, list) or len(answers) != len(seqs):
            raise PlugInError(f"{name} answered {answers!r}; admit() gives a Refusal, or a list of a Grant for each")
        for grant in answers:
            if not isinstance(grant, Grant) or not 0 <= grant.num_cached <= prefill_len:
                raise PlugInError(f"{name} answered {grant!r} for {prefill_len} tokens of {seqs}")


def _item(seq: Sequence, num_tokens: int) -> Item:
    """What is left to compute; the last token is computed even if it is cached: it yields the next output token."""
    stored = min(seq.stored, num_tokens - 1)
    return Item(seq, num_tokens - stored, stored)
