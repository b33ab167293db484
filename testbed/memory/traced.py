"""A policy that is watched: where every sequence lies, and a call before anything changes."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from testbed.core.batch import Batch
from testbed.core.sequence import Sequence
from testbed.core.slots import Answer, Answers, Extent, Grant, Ops, Tier, Waste
from testbed.memory.policy import MemoryPolicy


class Held(NamedTuple):
    """What a sequence holds: room for num_tokens tokens on the device, behind that on the host while it is there."""

    request_id: int
    num_tokens: int
    device: tuple[Extent, ...]
    host: tuple[Extent, ...] = ()


class Traced:
    """Passes every call on to `policy`, and calls `before_change` ahead of those that may change it.

    While `stepwise` it promises no further steps, so that every block is seen to be taken in its own iteration.
    """

    def __init__(self, policy: MemoryPolicy, before_change: Callable[[], object]) -> None:
        self.policy = policy
        self.stepwise = False
        self._before_change = before_change
        self._sequences: dict[int, Sequence] = {}
        self._num_tokens: dict[int, int] = {}
        self._swapped: dict[int, Held] = {}
        self._extents: dict[Extent, Extent] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def held(self) -> dict[int, Held]:
        """What every sequence holds now, by sequence id, in order of admission."""
        return {
            seq_id: self._swapped.get(seq_id) or Held(seq.request_id, self._num_tokens[seq_id], self._table(seq))
            for seq_id, seq in self._sequences.items()
        }

    def admit(self, seq: Sequence, num_tokens: int) -> Answer:
        """Pass on, and count the tokens."""
        self._before_change()
        answer = self.policy.admit(seq, num_tokens)
        if isinstance(answer, Grant):
            self._enter(seq, max(num_tokens, answer.num_cached))
        return answer

    def admit_all(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """Pass on, and count the tokens."""
        self._before_change()
        answers = self.policy.admit_all(seqs, num_tokens)
        if isinstance(answers, list):
            for seq, grant in zip(seqs, answers, strict=True):
                self._enter(seq, max(num_tokens, grant.num_cached))
        return answers

    def extend(self, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
        """Pass on, and count the tokens."""
        self._before_change()
        seqs = seqs if isinstance(seqs, Batch) else list(seqs)
        answer = self.policy.extend(seqs, num_tokens)
        if isinstance(answer, Grant):
            for seq in seqs:
                self._num_tokens[seq.seq_id] += num_tokens
        return answer

    def release(self, seq: Sequence) -> None:
        """Pass on, and forget the sequence."""
        self._before_change()
        self.policy.release(seq)
        self._leave(seq)

    def withdraw(self, seq: Sequence) -> None:
        """Pass on, and forget the sequence."""
        self._before_change()
        self.policy.withdraw(seq)
        self._leave(seq)

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """Pass on; the child has the parent's tokens."""
        self._before_change()
        ops = self.policy.fork(parent, child)
        self._enter(child, self._num_tokens[parent.seq_id])
        return ops

    def move(self, seqs: list[Sequence], tier: Tier) -> Answer:
        """Pass on, and note which host blocks each sequence went to."""
        self._before_change()
        tables = [self._table(seq) for seq in seqs] if tier is Tier.HOST else []
        answer = self.policy.move(seqs, tier)
        if not isinstance(answer, Grant):
            return answer
        if tier is Tier.DEVICE:
            for seq in seqs:
                del self._swapped[seq.seq_id]
        for seq, table in zip(seqs, tables, strict=False):
            kept, moved = parted(table, answer.ops)
            self._swapped[seq.seq_id] = Held(seq.request_id, self._num_tokens[seq.seq_id], kept, moved)
        return answer

    def register_prefix(self, num_tokens: int) -> None:
        """Pass on."""
        self._before_change()
        self.policy.register_prefix(num_tokens)

    def horizon(self, seqs: Iterable[Sequence], limit: int) -> int:
        """The policy's promise, or none while stepwise."""
        return 0 if self.stepwise else self.policy.horizon(seqs, limit)

    def waste(self, seq: Sequence, final_len: int) -> Waste | None:
        """The policy's answer; named here because the simulator looks for it on the class."""
        return self.policy.waste(seq, final_len)

    def _table(self, seq: Sequence) -> tuple[Extent, ...]:
        """Its extents; equal ones are one object, because thousands of frames repeat them."""
        known = self._extents
        return tuple([known.setdefault(extent, extent) for extent in self.policy.table(seq)])

    def _leave(self, seq: Sequence) -> None:
        del self._sequences[seq.seq_id], self._num_tokens[seq.seq_id]
        self._swapped.pop(seq.seq_id, None)

    def _enter(self, seq: Sequence, num_tokens: int) -> None:
        self._sequences[seq.seq_id] = seq
        self._num_tokens[seq.seq_id] = num_tokens


MemoryPolicy.register(Traced)


def parted(table: tuple[Extent, ...], ops: Ops) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """What a move to the host has left of a table on the device, and where it has put the rest."""
    target = {copy.src: copy.dst for copy in ops.swap_out}
    kept = tuple(extent for extent in table if extent.start not in target)
    moved = tuple(Extent(target[start], length) for start, length in table if start in target)
    return kept, moved
