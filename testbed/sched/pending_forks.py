"""Sequences that were forked, and the copies that the next plan makes for them."""

from dataclasses import dataclass, field

from testbed.core.sequence import Sequence, SequenceGroup
from testbed.core.slots import NO_OPS, Ops
from testbed.memory.capabilities import Capabilities
from testbed.sched.beam_search import Replacement
from testbed.sched.plan import Plan


@dataclass(eq=False, slots=True)
class PendingForks:
    """Forks since the last plan. A policy that shares blocks answers a fork without copies; any
    other one asks for a copy of the parent's tokens.

    num_forks: how many there were. copies: what the next plan copies, and for which groups.
    """

    memory: Capabilities
    copies: list[tuple[SequenceGroup, Ops]] = field(default_factory=list, init=False)
    num_forks: int = field(default=0, init=False)

    def fork(self, group: SequenceGroup, parent: Sequence, child: Sequence) -> None:
        """`child` continues with the tokens of `parent`; both are sequences of `group`."""
        ops = self.memory.fork(parent, child)
        if child.batch is None:  # members of a batch have the same counts already
            if self.memory.forks is None:
                child.num_stored = parent.num_stored
            else:
                child.set_counts(num_slots=parent.num_slots, num_stored=parent.num_stored)
        self.num_forks += 1
        if ops is not NO_OPS:
            self._ask(group, ops)

    def fork_members(self, group: SequenceGroup, parents: tuple[Replacement, ...]) -> None:
        """`fork` of sequences of a group of the batch, by place."""
        fork, seqs = self.memory.give_tokens, group.sequences
        for parent, child in parents:
            seq = seqs[child]
            seq.change_table()
            ops = fork(seqs[parent], seq)
            if ops is not NO_OPS:
                self._ask(group, ops)
        self.num_forks += len(parents)

    def _ask(self, group: SequenceGroup, ops: Ops) -> None:
        """The next plan makes these copies for the group, if there are any."""
        if ops != NO_OPS:
            self.copies.append((group, ops))

    def drop_copies_of(self, group: SequenceGroup) -> None:
        """The group does not run any more: its copies need not be made."""
        if self.copies:
            self.copies = [left for left in self.copies if left[0] is not group]

    def move_into(self, plan: Plan) -> None:
        """The plan counts the forks and makes their copies first."""
        plan.forks, self.num_forks = self.num_forks, 0
        if self.copies:
            plan.ops = [*[ops for _, ops in self.copies], *plan.ops]
            self.copies = []
