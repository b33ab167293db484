"""Lengths of sequences that advance together, kept as offsets from one step counter.

A decode step of a batch of a thousand then changes one number instead of a thousand.
"""

from typing import Generic, Self, TypeVar

from testbed.core.batch import Batch
from testbed.core.sequence import Sequence


class Clock:
    """Steps that a batch has made since its index was opened."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


AT_REST = Clock()


class Holding:
    """What a policy keeps of one sequence; it stores offset + clock.steps tokens."""

    __slots__ = ("clock", "offset")

    def __init__(self, num_tokens: int) -> None:
        self.clock = AT_REST
        self.offset = num_tokens

    @property
    def num_tokens(self) -> int:
        """Slots that store a token of this sequence."""
        return self.offset + self.clock.steps


H = TypeVar("H", bound=Holding)


class Lockstep(Generic[H]):
    """A policy's index on a batch: its members' holdings run on this index's clock. Subclasses add their order."""

    def __init__(self, batch: Batch, holdings: dict[int, H]) -> None:
        self.batch = batch
        self.holdings = holdings
        self.clock = Clock()
        self.members: dict[int, H] = {}
        for seq in batch:
            self.joined(seq)
        batch.observers.append(self)

    @classmethod
    def on(cls, batch: Batch, holdings: dict[int, H]) -> Self | None:
        """The index that the policy with these holdings keeps on `batch`, if it has opened one."""
        mine = (index for index in batch.observers if isinstance(index, cls) and index.holdings is holdings)
        return next(mine, None)

    def joined(self, seq: Sequence) -> None:
        """Put the holding of `seq` on the common clock."""
        holding = self.members[seq.seq_id] = self.holdings[seq.seq_id]
        holding.clock = self.clock
        holding.offset -= self.clock.steps
        self.enter(seq.seq_id, holding)

    def left(self, seq: Sequence) -> None:
        """Take the holding of `seq` off the common clock."""
        holding = self.members.pop(seq.seq_id)
        self.leave(seq.seq_id, holding)
        holding.offset += self.clock.steps
        holding.clock = AT_REST

    def enter(self, seq_id: int, holding: H) -> None:
        """Add a member to the subclass's order; its clock runs already."""

    def leave(self, seq_id: int, holding: H) -> None:
        """Take a member from the subclass's order; its clock still runs."""
