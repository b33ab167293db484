"""The moves of groups, as a scheduler makes them; each asks the policy and tells the witness what happened."""

from testbed.contract.clauses import check_ops
from testbed.contract.group import Group
from testbed.contract.questions import PolicyFactory, Questions
from testbed.contract.witness import Write
from testbed.core.batch import Batch, disband, passing_batch
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST, Refusal


class Moves:
    """Groups by request id, the batch that decodes, and what the plan that is under way will compute when it runs."""

    def __init__(self, factory: PolicyFactory, max_len: int, thorough: bool = True) -> None:
        self.questions = Questions(factory, max_len, thorough)
        self.policy = self.questions.policy
        self.witness = self.questions.witness
        self.groups: dict[int, Group] = {}
        self.batch = Batch()
        self._plan: list[Write] = []
        self._steps = 0

    def admit(self, group: Group, chunk: int) -> bool:
        """First room, for a new group or one that was preempted, and its first chunk in the plan."""
        seqs = group.sequences if group.differs or not self.policy.shares else [group.first]
        num_tokens = group.num_tokens if len(seqs) > 1 or not chunk else min(chunk, group.num_tokens)
        answers = self.questions.admit(seqs, num_tokens, group.told)
        if isinstance(answers, Refusal):
            return False
        group.tier, group.held = DEVICE, list(seqs)
        for seq, grant in zip(seqs, answers, strict=True):
            seq.room, seq.stored = max(num_tokens, grant.num_cached), grant.num_cached
            self.witness.entered(seq, grant.num_cached)
        for seq in seqs if group.differs else seqs[:1]:
            # The last token is computed even if it is stored: it yields the next output token.
            self._place(seq, min(seq.stored, group.num_tokens - 1), seq.room)
        group.placed = group.first.room
        return True

    def _place(self, seq: Sequence, start: int, end: int) -> None:
        """The tokens from `start` to `end`, if any, run in this plan; whoever asks next may find them."""
        if start == end:
            return
        self._plan.append(Write(seq, start, end - start))
        self.policy.computed(seq, end)
        self.witness.computed(seq, end)
        self._published()

    def _published(self) -> None:
        """Who was refused may ask again."""
        if self.policy.caches_prefixes:
            self.questions.refused = None

    def run_plan(self) -> None:
        """The plan runs; then every group whose prompt is computed is forked."""
        if not self._plan:
            return
        self.questions.log.append("the plan runs")
        self.witness.run(self._plan)
        for seq, start, num_tokens in self._plan:
            if seq.batch is None:
                seq.stored = max(seq.stored, start + num_tokens)
        self.batch.advance(self._steps)
        self._plan, self._steps = [], 0
        for group in self.groups.values():
            if group.decodes and group.first.stored >= group.num_tokens and not group.is_forked:
                self._fork_all(group)
        if self.questions.thorough:
            self.witness.check_tokens()

    def _fork_all(self, group: Group) -> None:
        group.is_forked = True
        for child in group.sequences[1:]:
            self._fork(group.first, child)
        group.held = list(group.sequences)

    def _fork(self, parent: Sequence, child: Sequence) -> None:
        name = f"fork({parent}, {child})"
        self.questions.log.append(name)
        ops = self.policy.fork(parent, child)
        check_ops(name, ops)
        self.witness.memory.perform(ops)
        if child.batch is None:
            child.room = parent.room
            child.stored = parent.stored
        self.witness.forked(parent, child)

    def refork(self, group: Group, parent: int) -> None:
        """A candidate of a beam goes on with another one's tokens."""
        child = group.sequences[parent % len(group.sequences) - 1]
        self._fork(group.sequences[parent % len(group.sequences)], child)
        self.questions.refused = None

    def step(self, num_tokens: int) -> None:
        """The batch takes as many steps at once as all members have left, at most num_tokens."""
        members = list(self.batch)
        num_tokens = min([num_tokens, *(g.left for g in self.groups.values() if g.in_batch)])
        if members and num_tokens and not isinstance(self.questions.extend(self.batch, num_tokens), Refusal):
            self._plan = [Write(seq, seq.stored, num_tokens) for seq in members]
            self._steps = num_tokens

    def extend(self, group: Group, num_tokens: int) -> None:
        """More of its prompt, or a generated token more in each of its sequences."""
        if any(write.seq in group.held for write in self._plan):
            self.run_plan()
        prompt = group.placed < group.num_tokens
        end = (
            min(group.placed + num_tokens, group.num_tokens)
            if prompt
            else group.first.room + min(num_tokens, group.left)
        )
        batch = passing_batch(group.held)
        missing = max(end - group.first.room, 0)
        refused = missing and isinstance(self.questions.extend(batch, missing), Refusal)
        disband(batch)
        if refused:
            return
        if prompt:
            self._place(group.first, group.placed, end)
            group.placed = end
        elif missing:
            self._plan += [Write(seq, seq.stored, missing) for seq in group.sequences]

    def join(self, group: Group) -> None:
        """The group joins the batch, or leaves it if it is a member."""
        name, act = ("leave", self.batch.leave) if group.in_batch else ("join", self.batch.join)
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
        if isinstance(self.questions.move(group.sequences, tier, alone=alone), Refusal):
            return
        group.tier = tier
        for seq in group.sequences:
            if tier == HOST:
                self.witness.left(seq)
            else:
                self.witness.entered(seq, 0)
                self.policy.computed(seq, seq.stored)
                self.witness.computed(seq, seq.stored)
        if tier == DEVICE:
            self._published()

    def preempt(self, group: Group) -> None:
        """It gives up its room, and will compute prompt and generated tokens again."""
        self._give_up(group)
        if group.is_forked and group.decodes:  # else it has not computed again yet what it had
            group.num_tokens = group.first.stored
        for seq in group.sequences:
            seq.room = seq.stored = 0
            seq.num_preemptions += 1
        group.tier, group.placed, group.is_forked = None, 0, group.differs

    def release(self, group: Group) -> None:
        """The group ends."""
        self._give_up(group)
        del self.groups[group.request.request_id]

    def _give_up(self, group: Group) -> None:
        self._leave(group)
        for seq in group.held:
            self.questions.log.append(f"release({seq})")
            self.policy.release(seq)
            if group.tier == DEVICE:
                self.witness.left(seq)
        group.held = []
        self.questions.refused = None
