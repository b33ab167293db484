"""The moves of a group between waiting, running, swapped and finished; every scheduler has one of these."""

from collections import deque

from testbed.core.batch import Batch
from testbed.core.errors import PlugInError
from testbed.core.sequence import Item, Sequence, SequenceGroup, SequenceStatus
from testbed.core.slots import HOST, NO_OPS, Answers, Grant, Ops, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.asking import forked, more_room, one_answer, wrong_answer
from testbed.sched.plan import Chunk, Plan
from testbed.sched.preemption import PreemptionRule


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
        if self._forks:
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
        prefill_len, policy = group.prefill_len, self.policy
        differ = prefill_len > group.request.prompt_len
        seqs = list(group.sequences) if differ or not policy.shares else group.sequences[:1]
        if len(seqs) > 1:
            num_tokens = prefill_len
        grants = policy.admit(seqs, num_tokens)
        if isinstance(grants, Refusal):
            self.refused = group if grants is Refusal.LATER else None
            return grants
        if not isinstance(grants, list) or len(grants) != len(seqs):
            raise wrong_answer(policy, grants, "admit() gives a Refusal, or a list of a Grant for each sequence")
        group.todo = []
        for seq, grant in zip(seqs, grants, strict=True):
            if not isinstance(grant, Grant) or not 0 <= grant.num_cached <= prefill_len:
                raise wrong_answer(policy, grant, f"{seq} has {prefill_len} tokens that could be cached")
            cached = seq.stored_offset = grant.num_cached  # at rest
            seq.room_offset = num_tokens if num_tokens > cached else cached
            if differ or not group.todo:
                # The last token is computed even if it is cached: it yields the next output token.
                past = cached if cached < prefill_len else prefill_len - 1
                group.todo.append(Item(seq, prefill_len - past, past))
            if grant.ops is not NO_OPS:
                self.order(grant.ops, plan)
        group.resident = seqs
        self.arrive(group, SequenceStatus.PREFILLING)
        return grants

    def place(self, group: SequenceGroup, new: int, plan: Plan, padding: int = 0) -> None:
        """The next `new` tokens of the group's prompt phase run in this plan; whoever asks next may find them."""
        seq, left, stored = group.todo.pop(0)
        if new < left:
            group.todo.insert(0, Item(seq, left - new, stored + new))
        plan.chunks.append(Chunk(group, seq, new, stored, not group.todo, padding))
        self.policy.computed(seq, stored + new)
        if self.policy.caches_prefixes:
            self.room_freed()

    def make_room(self, seqs: list[Sequence], num_tokens: int, plan: Plan) -> bool:
        """See to it that sequences of one length, which are in no batch, have room for num_tokens tokens."""
        missing = num_tokens - seqs[0].room
        if missing <= 0:
            return True
        answer = more_room(self.policy, seqs, missing)
        if isinstance(answer, Grant):
            self.order(answer.ops, plan)
        return isinstance(answer, Grant)

    def join(self, group: SequenceGroup) -> None:
        """The group decodes with the batch from the next step on."""
        batch = group.batch = self.batch
        group.status = SequenceStatus.RUNNING
        group.generated_offset -= batch.steps
        for seq in group.sequences:
            batch.join(seq)
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

    def release(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group is no longer resident, and gives its room back: it is finished, or waits again."""
        group.status = status
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)
        for seq in group.resident:
            self.policy.release(seq)
            seq.room_offset = seq.stored_offset = 0  # at rest
        group.resident = []
        if self._copies:
            self._copies = [kept for kept in self._copies if kept[0] is not group]
        self.room_freed()

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
        if ops != NO_OPS:
            plan.ops.append(ops)

    def room_freed(self) -> None:
        """Something was released, moved out or published: whoever was refused may ask again."""
        self.refused, self.resume_refused = None, False

    def extend_promised(self, steps: int) -> Grant:
        """So many steps more have happened, within the horizon that the policy has promised."""
        answer = self.policy.extend(self.batch, steps)
        if isinstance(answer, Grant) and answer.ops == NO_OPS:
            self.batch.extend(steps)
            return answer
        name, said = type(self.policy).__name__, one_answer(self.policy, answer)
        raise PlugInError(f"{name} promised {steps} more steps by horizon() and then answered {said}")

    def arrive(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group is resident from now on."""
        group.status = status
        self.running[group.request.request_id] = group
        self.num_seqs += len(group.sequences)

    def lose(self, group: SequenceGroup) -> None:
        """Recompute: prompt and generated tokens go back to the head of the queue."""
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

    def _let_go(self) -> None:
        for group in self.ended:
            if group.batch is not None:
                self.leave(group)
            self.release(group, SequenceStatus.FINISHED)
        self.ended.clear()

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        ops = forked(self.policy, parent, child)
        self._forks += 1
        if ops != NO_OPS:
            self._copies.append((group, ops))
