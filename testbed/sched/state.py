"""The moves of a group between waiting, running, swapped and finished; every scheduler has one of these."""

from collections import deque

from testbed.core.errors import PlugInError
from testbed.core.sequence import Batch, Item, Sequence, SequenceGroup, SequenceStatus, disband, passing_batch
from testbed.core.slots import HOST, NO_OPS, Answers, Grant, Ops, Refusal
from testbed.memory.policy import MemoryPolicy
from testbed.sched.answers import one_answer, whole, wrong_answer
from testbed.sched.plan import Chunk, Plan


class SchedulerState:
    """Groups and batch, consistent with the policy's tables: counts change by the policy's answers alone.

    waiting: in order of service, preempted groups in front. running: admitted, in order of admission.
    swapped: on the host, the first to come back in front. batch: the sequences that decode in lockstep; beams: those of
    its groups that search with beams. num_seqs counts the running sequences.
    arriving: groups that the next plan does not see yet; ended: those that have their whole output and keep their
    slots until results are in. Both are empty unless a scheduler plans ahead.
    refused: the group that was refused since memory was last released; by clause 2 of the contract it would be refused
    again, so the scheduler does not retry. swap_in_refused: the same for the first swapped group.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.waiting: deque[SequenceGroup] = deque()
        self.running: dict[int, SequenceGroup] = {}
        self.swapped: deque[SequenceGroup] = deque()
        self.batch = Batch()
        self.beams: dict[int, SequenceGroup] = {}
        self.num_seqs = 0
        self.arriving: list[SequenceGroup] = []
        self.ended: list[SequenceGroup] = []
        self.refused: SequenceGroup | None = None
        self.swap_in_refused = False
        self._copies: list[tuple[SequenceGroup, Ops]] = []
        self._forks = 0

    def new_plan(self) -> Plan:
        """An empty plan but for the forks that have happened, and the copies that they have left to do first."""
        plan = Plan()
        if self.policy.moves_in_background:
            self.order(self.policy.background(), plan)
        if self._forks:
            plan.forks, self._forks = self._forks, 0
        if self._copies:
            plan.ops, self._copies = [ops for _, ops in self._copies], []
        return plan

    def admit(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> Answers:
        """Slots for the first num_tokens tokens of the sequences of the first waiting group, all or none.

        The group is running then. One that could never run leaves the queue, and the plan lists it as rejected.
        A policy that shares gives slots to the first sequence, which is forked when its prompt is computed; one that
        does not gives every sequence slots for the whole prompt, because all but the first are filled by that fork.
        Sequences of a preempted group differ from each other, and are computed one by one.
        """
        prefill_len, policy = group.prefill_len, self.policy
        differ = prefill_len > group.request.prompt_len
        seqs = list(group.sequences) if differ or not policy.shares else group.sequences[:1]
        if len(seqs) > 1:
            num_tokens = prefill_len
        if policy.moves_in_background and not self.load(group, num_tokens, plan):
            self.refused = group
            return Refusal.LATER
        grants = policy.admit(seqs, num_tokens)
        if isinstance(grants, Refusal):
            self.refused = None if grants is Refusal.NEVER else group
            if grants is Refusal.NEVER:
                plan.rejected.append(self.waiting.popleft())
            return grants
        if not isinstance(grants, list) or len(grants) != len(seqs):
            raise wrong_answer(policy, grants, "admit() gives a Refusal, or a list of a Grant for each sequence")
        group.todo = []
        for seq, grant in zip(seqs, grants, strict=True):
            if type(grant) is not Grant or not 0 <= whole(policy, "num_cached", grant.num_cached) <= prefill_len:
                raise wrong_answer(policy, grant, f"{seq} has {prefill_len} tokens that could be cached")
            cached = seq.stored_offset = grant.num_cached  # at rest
            seq.slots_offset = num_tokens if num_tokens > cached else cached
            if differ or not group.todo:
                # The last token is computed even if it is cached: it yields the next output token.
                past = cached if cached < prefill_len else prefill_len - 1
                group.todo.append(Item(seq, prefill_len - past, past))
            if grant.ops is not NO_OPS:
                self.order(grant.ops, plan)
        group.resident = seqs
        self.waiting.popleft()
        self.add_running(group, SequenceStatus.PREFILLING)
        return grants

    def load(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> bool:
        """Begin to load what lower tiers have of a waiting group; False where there are no slots for it now."""
        answer = one_answer(self.policy, self.policy.load(group.sequences[0], num_tokens))
        if isinstance(answer, Grant):
            self.order(answer.ops, plan)
        return isinstance(answer, Grant)

    def schedule_chunk(self, group: SequenceGroup, new: int, plan: Plan) -> None:
        """The next `new` tokens of the group's prefill run in this plan; a later admission may find them."""
        seq, left, num_stored = group.todo.pop(0)
        if new < left:
            group.todo.insert(0, Item(seq, left - new, num_stored + new))
        plan.chunks.append(Chunk(group, seq, new, num_stored, not group.todo))
        self.policy.publish(seq, num_stored + new)
        if self.policy.caches_prefixes:
            self.memory_released()

    def ensure_slots(self, seqs: list[Sequence], num_tokens: int, plan: Plan) -> bool:
        """Give sequences of one length, which are in no batch, slots for num_tokens tokens; whether they have them."""
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

    def leave_batch(self, group: SequenceGroup) -> None:
        """The group no longer decodes."""
        self.beams.pop(group.request.request_id, None)
        group.leave_batch()

    def fork(self, group: SequenceGroup) -> None:
        """The prompt is computed: every sequence starts with it."""
        for child in group.sequences[1:]:
            self._fork(group, group.sequences[0], child)
        group.resident = list(group.sequences)

    def choose_parents(self, group: SequenceGroup, parents: tuple[tuple[int, int], ...]) -> None:
        """A beam group has new candidates: those that did not survive continue from others' tokens (Fig. 9)."""
        for parent, child in parents:
            self._fork(group, group.sequences[parent], group.sequences[child])

    def release(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group stops running and releases its slots: it is finished, or waits again."""
        group.status = status
        del self.running[group.request.request_id]
        self.num_seqs -= len(group.sequences)
        for seq in group.resident:
            self.policy.release(seq)
            seq.slots_offset = seq.stored_offset = 0  # at rest
        group.resident = []
        self._copies = [kept for kept in self._copies if kept[0] is not group]
        self.memory_released()

    def settle(self) -> bool:
        """Results are in: ended groups release their slots, arrived ones wait. Whether there were any."""
        pending = bool(self.ended or self.arriving)
        self.finish_ended()
        self.waiting.extend(self.arriving)
        self.arriving.clear()
        return pending

    def finish_ended(self) -> None:
        """Those that have ended give their slots back, in order of admission."""
        ended = self.ended if len(self.ended) < 2 else [one for one in self.running.values() if one in self.ended]
        for group in ended:
            if group.batch is not None:
                self.leave_batch(group)
            self.release(group, SequenceStatus.FINISHED)
        self.ended.clear()

    def end_early(self, plan: Plan) -> bool:
        """The last that was admitted is preempted if it has ended: its results, about to come, are its last."""
        last = next(reversed(self.running.values()))
        if last not in self.ended:
            return False
        if last.batch is not None:
            self.leave_batch(last)
        self.ended.remove(last)
        plan.ended_early.append(last)
        self.before_preemption(last)
        self.release(last, SequenceStatus.FINISHED)
        return True

    def before_preemption(self, group: SequenceGroup) -> None:
        """The group, which is in no batch, is about to lose its slots."""

    def order(self, ops: Ops, plan: Plan) -> None:
        """Have the engine perform `ops` before the iteration."""
        if ops != NO_OPS:
            plan.ops.append(ops)

    def returns_first(self) -> bool:
        """Whether the first swapped group, which there is, comes back before a waiting one is admitted."""
        return True

    def preemptible(self) -> dict[int, SequenceGroup]:
        """The running groups among which a preemption rule chooses its victim, by request id."""
        if not self.ended:
            return self.running
        return {key: group for key, group in self.running.items() if group not in self.ended}

    def memory_released(self) -> None:
        """Memory was released, moved out or published, or a transfer has landed: a refused request may be retried."""
        self.refused, self.swap_in_refused = None, False

    def extend_promised(self, steps: int) -> Grant:
        """So many more steps have run, within the policy's guaranteed steps."""
        answer = self.policy.advance(self.batch, steps)
        if isinstance(answer, Grant) and answer.ops == NO_OPS:
            self.batch.extend(steps)
            return answer
        name, answered = type(self.policy).__name__, one_answer(self.policy, answer)
        raise PlugInError(f"{name} promised {steps} more steps by guaranteed_steps() and then answered {answered}")

    def add_running(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group is running from now on."""
        group.status = status
        self.running[group.request.request_id] = group
        self.num_seqs += len(group.sequences)

    def preempt_by_recompute(self, group: SequenceGroup) -> None:
        """Recompute: prompt and generated tokens go back to the head of the queue."""
        self.before_preemption(group)
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

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        ops = self.policy.fork(parent, child)
        if child.batch is None:  # members of a batch have the same counts already
            child.num_stored = parent.num_stored
            if self.policy.shares:
                child.num_slots = parent.num_slots
        self._forks += 1
        if ops != NO_OPS:
            self._copies.append((group, ops))
