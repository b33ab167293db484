"""A policy that is watched: where every sequence lies, and a call before anything changes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import DEVICE, Answer, Answers, Extent, Footprint, Grant, Move, Ops, Usage
from testbed.memory.policy import MemoryPolicy

TRAITS = (
    "reads_output_len", "shares", "caches_prefixes", "moves_tiers", "moves_in_background", "drops_tokens",
    "returns_slots", "shrinks", "prefetches",
)  # fmt: skip
UNWATCHED = (
    "find", "group_tables", "fits", "max_seq_len", "num_stored", "counters", "non_sequence_slots", "check", "foresee",
)  # fmt: skip


class Held(NamedTuple):
    """The slots of a sequence for num_tokens tokens: on the device, then on the host while it is swapped out."""

    request_id: int
    num_tokens: int
    device: tuple[Extent, ...]
    host: tuple[Extent, ...] = ()


class Traced(MemoryPolicy):
    """Passes every call on to `policy`, and calls `before_change` ahead of those that may change it.

    While `stepwise` it promises no further steps, so that every block is seen to be taken in its own iteration.
    """

    def __init__(self, policy: MemoryPolicy, before_change: Callable[[], object]) -> None:
        self.policy = policy
        self.stepwise = False
        self._before_change = before_change
        self._sequences: dict[int, Sequence] = {}
        self._swapped: dict[int, Held] = {}
        self._extents: dict[Extent, Extent] = {}
        for name in (*TRAITS, *UNWATCHED):
            setattr(self, name, getattr(policy, name))

    def __getattr__(self, name: str) -> Any:
        """What only this policy has."""
        return getattr(self.policy, name)

    def held(self) -> dict[int, Held]:
        """What every sequence holds now, by sequence id, in order of admission."""
        return {
            seq_id: self._swapped.get(seq_id) or Held(seq.request_id, seq.num_slots, self._table(seq))
            for seq_id, seq in self._sequences.items()
        }

    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """Pass on, and note who is there."""
        self._before_change()
        answers = self.policy.admit(seqs, num_tokens)
        if isinstance(answers, list):
            self._sequences.update((seq.seq_id, seq) for seq in seqs)
        return answers

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        """Pass on."""
        self._before_change()
        return self.policy.extend(batch, num_tokens)

    def advance(self, batch: Batch, num_steps: int) -> Answer:
        """Pass on."""
        self._before_change()
        return self.policy.advance(batch, num_steps)

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """Pass on."""
        self._before_change()
        self.policy.publish(seq, num_tokens)

    def release(self, seq: Sequence) -> None:
        """Pass on, and forget the sequence."""
        self._before_change()
        self.policy.release(seq)
        del self._sequences[seq.seq_id]
        self._swapped.pop(seq.seq_id, None)

    def shrink(self, seq: Sequence, num_tokens: int) -> Grant:
        """Pass on."""
        self._before_change()
        return self.policy.shrink(seq, num_tokens)

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """Pass on, and note who is there."""
        self._before_change()
        ops = self.policy.fork(parent, child)
        self._sequences[child.seq_id] = child
        return ops

    def move(self, seqs: list[Sequence], tier: str) -> Answer:
        """Pass on, and note which blocks of the tier each sequence went to."""
        self._before_change()
        tables = [] if tier == DEVICE else [self._table(seq) for seq in seqs]
        answer = self.policy.move(seqs, tier)
        if not isinstance(answer, Grant):
            return answer
        if tier == DEVICE:
            for seq in seqs:
                del self._swapped[seq.seq_id]
        for seq, table in zip(seqs, tables, strict=False):
            kept, moved = parted(table, answer.ops.moves)
            self._swapped[seq.seq_id] = Held(seq.request_id, seq.num_slots, kept, moved)
        return answer

    def load(self, seq: Sequence, num_tokens: int) -> Answer:
        """Pass on."""
        self._before_change()
        return self.policy.load(seq, num_tokens)

    def background(self) -> Ops:
        """Pass on."""
        self._before_change()
        return self.policy.background()

    def landed(self, move_id: int) -> None:
        """Pass on."""
        self._before_change()
        self.policy.landed(move_id)

    def close_session(self, session: int) -> None:
        """Pass on; no slot changes hands."""
        self.policy.close_session(session)

    def register_prefix(self, num_tokens: int) -> None:
        """Pass on."""
        self._before_change()
        self.policy.register_prefix(num_tokens)

    def guaranteed_steps(self, batch: Batch) -> int:
        """The policy's promise, or none while stepwise."""
        return 0 if self.stepwise else self.policy.guaranteed_steps(batch)

    def table(self, seq: Sequence) -> list[Extent]:
        """The policy's answer, as in what follows."""
        return self.policy.table(seq)

    def usage(self) -> Usage:
        return self.policy.usage()

    def footprint(self, seq: Sequence) -> Footprint | None:
        return self.policy.footprint(seq)

    def _table(self, seq: Sequence) -> tuple[Extent, ...]:
        """Its extents; equal ones are one object, because thousands of frames repeat them."""
        known = self._extents
        return tuple([known.setdefault(extent, extent) for extent in self.policy.table(seq)])


def parted(table: tuple[Extent, ...], moves: tuple[Move, ...]) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """What a move off the device has left of a table there, and where it has put the rest."""
    target = {copy.src: copy.dst for move in moves if move.source == DEVICE for copy in move.copies}
    kept = tuple(extent for extent in table if extent.start not in target)
    moved = tuple(Extent(target[start], length) for start, length in table if start in target)
    return kept, moved
