"""The persistent decode batch: sequences that advance in lockstep, one token a step."""

from collections.abc import Iterator
from typing import Protocol

from testbed.core.sequence import Sequence


class BatchObserver(Protocol):
    """Somebody who keeps an index on a batch, so that a step need not walk it."""

    def joined(self, seq: Sequence) -> None:
        """`seq` steps with the batch from now on."""

    def left(self, seq: Sequence) -> None:
        """`seq` no longer steps with the batch; called before it is released or moved."""


class Batch:
    """Sequences in order of joining, with the sum of their lengths and a common step counter."""

    __slots__ = ("context", "observers", "sequences", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.context = 0
        self.sequences: dict[int, Sequence] = {}
        self.observers: list[BatchObserver] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences.values())

    def join(self, seq: Sequence, num_tokens: int) -> None:
        """Add a sequence that stores num_tokens tokens."""
        self.sequences[seq.seq_id] = seq
        self.context += num_tokens
        for observer in self.observers:
            observer.joined(seq)

    def leave(self, seq: Sequence, num_tokens: int) -> None:
        """Take out a sequence that stores num_tokens tokens by now."""
        del self.sequences[seq.seq_id]
        self.context -= num_tokens
        for observer in self.observers:
            observer.left(seq)

    def advance(self, steps: int) -> None:
        """Every sequence has stored `steps` more tokens."""
        self.steps += steps
        self.context += steps * len(self.sequences)
