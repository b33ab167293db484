"""The persistent decode batch: sequences that advance in lockstep, and the one clock that they live on."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from testbed.core.sequence import Sequence


class BatchIndex(ABC):
    """What a policy keeps on a batch, so that a step need not walk it."""

    @abstractmethod
    def joined(self, seq: "Sequence") -> None:
        """`seq` is a member from now on, with its `room` on the batch's clock."""

    @abstractmethod
    def left(self, seq: "Sequence") -> None:
        """`seq` is about to be no member; called before it is released or moved."""


I = TypeVar("I", bound=BatchIndex)  # noqa: E741


class Batch:
    """Sequences in order of joining.

    Two facts move here for all members at once: `extended` counts the steps that they have room for, `steps` those
    that have run. A member's own counts are offsets from these.
    """

    __slots__ = ("_offsets", "_rooms", "extended", "indexes", "sequences", "steps")

    def __init__(self) -> None:
        self.extended = self.steps = self._rooms = 0
        self.sequences: dict[int, Sequence] = {}
        self.indexes: dict[object, Any] = {}
        self._offsets: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> "Iterator[Sequence]":
        return iter(self.sequences.values())

    @property
    def context(self) -> int:
        """The sum of the members' rooms."""
        return self._rooms + self.extended * len(self.sequences)

    @property
    def longest(self) -> int:
        """The largest of the members' rooms, 0 for an empty batch."""
        return self.extended - self._offsets[0][0] if self._offsets else 0

    def index(self, owner: object, make: Callable[["Batch"], I]) -> I:
        """The index that `owner` keeps here; made when it is asked for first."""
        index = self.indexes.get(owner)
        if index is None:
            index = self.indexes[owner] = make(self)
            for seq in self:
                index.joined(seq)
        return index

    def join(self, seq: "Sequence") -> None:
        """Add a sequence, which runs on this clock from now on."""
        self.sequences[seq.seq_id] = seq
        seq.room_offset -= self.extended
        self._rooms += seq.room_offset
        seq.stored_offset -= self.steps
        seq.batch = self
        heapq.heappush(self._offsets, (-seq.room_offset, seq.seq_id))
        for index in self.indexes.values():
            index.joined(seq)

    def leave(self, seq: "Sequence") -> None:
        """Take a sequence out; its counts are its own again."""
        for index in self.indexes.values():
            index.left(seq)
        del self.sequences[seq.seq_id]
        self._rooms -= seq.room_offset
        if self._offsets[0][1] == seq.seq_id:
            self._drop_lapsed()
        seq.batch = None
        seq.room_offset += self.extended
        seq.stored_offset += self.steps

    def _drop_lapsed(self) -> None:
        """The first offset is a member's again: those before it belong to sequences that have left."""
        offsets, members = self._offsets, self.sequences
        while offsets and (offsets[0][1] not in members or members[offsets[0][1]].room_offset != -offsets[0][0]):
            heapq.heappop(offsets)

    def extend(self, num_tokens: int) -> None:
        """Every member has room for so many tokens more."""
        self.extended += num_tokens

    def advance(self, steps: int) -> None:
        """Every member has stored so many tokens more."""
        self.steps += steps


def passing_batch(seqs: "Iterable[Sequence]") -> Batch:
    """A batch for one call: whoever makes it takes the sequences out again by `disband`."""
    batch = Batch()
    for seq in seqs:
        batch.join(seq)
    return batch


def disband(batch: Batch) -> None:
    """All members leave."""
    for seq in list(batch):
        batch.leave(seq)
