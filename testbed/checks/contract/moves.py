"""Groups of sequences and their moves, as a scheduler makes them; each calls the policy and informs
the witness.
"""

from dataclasses import dataclass, field

from testbed.checks.contract.clauses import check_answer, check_ops, require
from testbed.checks.contract.questions import MakePolicy, Questions
from testbed.checks.contract.witness import Write
from testbed.core.request import Incoming
from testbed.core.sequence import Batch, Sequence, disband, passing_batch
from testbed.core.slots import DEVICE, HOST, Keep, Lease, Refusal
from testbed.memory.policy import PoolSpec


@dataclass(slots=True, eq=False)
class Group:
    """Scheduled and preempted together; all of its sequences are equally long.

    held: the sequences with slots; if memory is shared only the first, until the prompt is
    computed. tier: that of their slots, None while they have none. The prefill stores num_tokens
    tokens of each, after recompute also the generated ones; `placed` of the first sequence's are
    computed, or will be when the plan has run.
    """

    request: Incoming
    sequences: list[Sequence]
    final_len: int
    num_tokens: int
    note: str = ""
    placed: int = 0
    tier: str | None = None
    held: list[Sequence] = field(default_factory=list)
    is_forked: bool = False

    @property
    def first(self) -> Sequence:
        """The sequence that computes the prompt."""
        return self.sequences[0]

    @property
    def differs(self) -> bool:
        return self.num_tokens > self.request.prompt_len

    @property
    def in_batch(self) -> bool:
        return self.first.batch is not None

    @property
    def decodes(self) -> bool:
        return self.tier == DEVICE and self.placed >= self.num_tokens

    @property
    def has_spare(self) -> bool:
        """True if rejected drafts have left it slots, between two plans."""
        return self.first.num_slots > self.first.num_stored

    @property
    def tokens_left(self) -> int:
        return self.final_len - self.first.num_slots


class Moves:
    """Groups by request id, the batch that decodes, and what the present plan will compute when it
    runs.
    """

    def __init__(self, make: MakePolicy, pool: PoolSpec, thorough: bool = True) -> None:
        self.questions = Questions(make, pool, thorough)
        self.memory = self.questions.memory
        self.policy = self.questions.policy
        self.witness = self.questions.witness
        self.groups: dict[int, Group] = {}
        self.batch = Batch()
        self.leased: list[Group] = []
        self._plan: list[Write] = []
        self._steps = 0

    def admit(self, group: Group, chunk: int) -> bool:
        """First slots, for a new group or one that was preempted, and its first chunk in the
        plan.
        """
        is_split = group.differs or self.memory.forks is None
        seqs = group.sequences if is_split else [group.first]
        num_tokens = (
            group.num_tokens if len(seqs) > 1 or not chunk else min(chunk, group.num_tokens)
        )
        hit = self.memory.lookup(seqs[0])
        if self.memory.transfers is not None and not self.questions.load(
            seqs[0], num_tokens, group.note, hit
        ):
            return False
        answers = self.questions.admit(seqs, num_tokens, group.num_tokens, group.note, hit)
        if isinstance(answers, Refusal):
            return False
        group.tier, group.held = DEVICE, list(seqs)
        for seq, grant in zip(seqs, answers, strict=True):
            seq.num_slots, seq.num_stored = max(num_tokens, grant.num_cached), grant.num_cached
            self.witness.entered(seq, grant.num_cached)
        for seq in seqs if group.differs else seqs[:1]:
            # The last token is computed even if it is stored: it yields the next output token.
            self._place(seq, min(seq.num_stored, group.num_tokens - 1), seq.num_slots)
        group.placed = group.first.num_slots
        return True

    def _place(self, seq: Sequence, start: int, end: int) -> None:
        """The tokens from `start` to `end`, if any, run in this plan; a later admission may find
        them.
        """
        if start < end:
            self._plan.append(Write(seq, start, end - start))
            self._publish(seq, end)

    def _publish(self, seq: Sequence, num_tokens: int) -> None:
        if self.memory.publishes is not None:
            self.memory.publishes.publish(seq, num_tokens)
            self.questions.refused = None
        self.witness.publish(seq, num_tokens)

    def run_plan(self) -> None:
        """The plan runs; then every group whose prompt is computed is forked, and transfers may
        begin.
        """
        if self._plan:
            self._compute()
        if self.memory.transfers is not None:
            ops = self.memory.transfers.background()
            self.questions.answers.append(ops)
            check_ops("background()", ops)
            only = not (ops.copies or ops.moves)
            require(
                10, only, f"background() orders {ops}: it begins transfers in the background alone"
            )
            self.witness.memory.perform(ops)

    def land(self, pick: int) -> None:
        """One of the transfers that are on their way ends."""
        if on_way := list(self.witness.memory.in_transit):
            move_id = on_way[pick % len(on_way)]
            self.questions.log.append(f"landed({move_id})")
            self.witness.memory.land(move_id)
            assert self.memory.transfers is not None
            self.memory.transfers.landed(move_id)
            self.questions.refused = None

    def _compute(self) -> None:
        self.questions.log.append("the plan runs")
        self.witness.run(self._plan)
        for seq, start, num_tokens in self._plan:
            if seq.batch is None:
                seq.num_stored = max(seq.num_stored, start + num_tokens)
        self.batch.advance(self._steps)
        self._plan, self._steps = [], 0
        for group in self.groups.values():
            if group.decodes and group.first.num_stored >= group.num_tokens and not group.is_forked:
                group.is_forked = True
                for child in group.sequences[1:]:
                    self._fork(group.first, child)
                group.held = list(group.sequences)
        if self.questions.thorough:
            self.witness.check_tokens()

    def _fork(self, parent: Sequence, child: Sequence) -> None:
        name = f"fork({parent}, {child})"
        self.questions.log.append(name)
        ops = self.memory.fork(parent, child)
        check_ops(name, ops)
        self.witness.memory.perform(ops)
        if child.batch is None:
            child.num_slots = parent.num_slots
            child.num_stored = parent.num_stored
        self.witness.forked(parent, child)

    def refork(self, group: Group, parent: int) -> None:
        child = group.sequences[parent % len(group.sequences) - 1]
        self._fork(group.sequences[parent % len(group.sequences)], child)
        self.questions.refused = None

    def step(self, num_tokens: int) -> None:
        """The batch takes as many steps at once as all members have left, at most num_tokens."""
        members = list(self.batch)
        num_tokens = min([num_tokens, *(g.tokens_left for g in self.groups.values() if g.in_batch)])
        if (
            members
            and num_tokens
            and not isinstance(self.questions.extend(self.batch, num_tokens), Refusal)
        ):
            self._plan = [Write(seq, seq.num_stored, num_tokens) for seq in members]
            self._steps = num_tokens

    def extend(self, group: Group, num_tokens: int) -> None:
        """More of its prompt, or a generated token more in each of its sequences."""
        if any(write.seq in group.held for write in self._plan):
            self.run_plan()
        if prompt := group.placed < group.num_tokens:
            end = min(group.placed + num_tokens, group.num_tokens)
        else:
            end = group.first.num_slots + min(num_tokens, group.tokens_left)
        batch = passing_batch(group.held)
        missing = max(end - group.first.num_slots, 0)
        refused = missing and isinstance(self.questions.extend(batch, missing), Refusal)
        disband(batch)
        if refused:
            return
        if prompt:
            self._place(group.first, group.placed, end)
            group.placed = end
        elif missing:
            self._plan += [Write(seq, seq.num_stored, missing) for seq in group.sequences]

    def join(self, group: Group) -> None:
        name, act = ("leave", self.batch.remove) if group.in_batch else ("join", self.batch.add)
        self.questions.log.append(f"batch.{name} of {group.sequences}")
        for seq in group.sequences:
            act(seq)

    def _leave(self, group: Group) -> None:
        if group.in_batch:
            self.join(group)

    def move(self, group: Group) -> None:
        """The group goes to the other tier; what comes back is findable at once."""
        self._leave(group)
        tier = DEVICE if group.tier == HOST else HOST
        alone = all(other is group or other.tier != tier for other in self.groups.values())
        alone = alone and not self.witness.memory.in_transit
        if isinstance(self.questions.move(group.sequences, tier, alone=alone), Refusal):
            return
        group.tier = tier
        for seq in group.sequences:
            if tier == HOST:
                self.witness.removed(seq)
            else:
                self.witness.entered(seq, 0)
                self._publish(seq, seq.num_stored)

    def truncate(self, group: Group, num_tokens: int) -> None:
        """It gives its last slots back, but for the first, and will compute what they stored
        again.
        """
        self._leave(group)
        seq, left = group.first, max(group.first.num_slots - num_tokens, 1)
        self.questions.log.append(f"truncate({seq}, {seq.num_slots - left})")
        assert self.memory.truncates is not None
        answer = self.memory.truncates.truncate(seq, seq.num_slots - left)
        check_answer("truncate()", answer)
        if group.decodes:
            group.num_tokens = seq.num_stored
        seq.num_slots = group.placed = left
        seq.num_stored = min(seq.num_stored, left)
        group.is_forked = group.differs
        self.questions.refused = None

    def draft(self, group: Group, num_tokens: int) -> None:
        """It computes its newest token and drafts, num_tokens in all. The second half of them, but
        never the newest token, is rejected, and gives its slots back.
        """
        before = group.first.num_slots
        self.extend(group, num_tokens)
        self.run_plan()
        rejected = (group.first.num_slots - before) // 2
        if not rejected:
            return
        seq = group.first
        self.questions.log.append(f"truncate({seq}, {rejected}): rejected drafts")
        assert self.memory.truncates is not None
        check_answer("truncate()", self.memory.truncates.truncate(seq, rejected))
        seq.num_slots -= rejected
        seq.num_stored = min(seq.num_stored, seq.num_slots)
        self.witness.rejected(seq)
        self.questions.refused = None

    def speculate(self, group: Group, num_tokens: int) -> None:
        """As `draft`, but it keeps the slots of rejected drafts for the tokens that follow."""
        seq = group.first
        end = min(seq.num_stored + num_tokens, group.final_len)
        num_new, missing = end - seq.num_stored, end - seq.num_slots
        batch = passing_batch(group.held)
        refused = missing > 0 and isinstance(self.questions.extend(batch, missing), Refusal)
        disband(batch)
        if refused or num_new < 1:
            return
        self._plan.append(Write(seq, seq.num_stored, num_new))
        self.run_plan()
        seq.num_stored -= num_new // 2
        self.witness.rejected(seq)
        self.questions.log.append(f"{seq} has {seq.num_stored} tokens: the rest is rejected")

    def preempt(self, group: Group) -> None:
        """It releases its slots, and will compute prompt and generated tokens again."""
        self._give_up(group)
        if group.is_forked and group.decodes:  # else it has not computed again yet what it had
            group.num_tokens = group.first.num_stored
        for seq in group.sequences:
            seq.num_slots = seq.num_stored = 0
            seq.num_preemptions += 1
        group.tier, group.placed, group.is_forked = None, 0, group.differs

    def release(self, group: Group) -> None:
        self._give_up(group)
        del self.groups[group.request.request_id]

    def lease(self, group: Group) -> None:
        """It ends, but its slots stay."""
        self._leave(group)
        assert self.memory.leases is not None
        for seq in group.held:
            self.questions.log.append(f"release({seq}, {self._lease_of(group)})")
            self.memory.leases.release(seq, self._lease_of(group))
        self.leased.append(self.groups.pop(group.request.request_id))

    def end_leases(self) -> None:
        """All slots that leases have kept come back."""
        for group in self.leased:
            assert self.memory.leases is not None
            self.questions.log.append(f"end_lease({self._lease_of(group)})")
            self.memory.leases.end_lease(self._lease_of(group))
            for seq in group.held:
                self.witness.removed(seq)
            self.questions.refused = None
        self.leased.clear()

    def discard(self, group: Group) -> None:
        """It ends, and nothing of it is to be found again."""
        self._leave(group)
        assert self.memory.leases is not None
        for seq in group.held:
            self.questions.log.append(f"release({seq}, {Keep.NOTHING})")
            self.memory.leases.release(seq, Keep.NOTHING)
            self.witness.removed(seq)
        self.questions.refused = None
        del self.groups[group.request.request_id]

    @staticmethod
    def _lease_of(group: Group) -> Lease:
        return Lease(group.request.request_id)

    def _give_up(self, group: Group) -> None:
        self._leave(group)
        for seq in group.held:
            self.questions.log.append(f"release({seq})")
            self.policy.release(seq)
            if group.tier == DEVICE:
                self.witness.removed(seq)
        group.held = []
        self.questions.refused = None
