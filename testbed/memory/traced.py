"""A policy that is watched: where every sequence lies, and a call before anything changes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import DEVICE, Answer, Answers, Extent, Grant, Ops
from testbed.memory.policy import MemoryPolicy


class Held(NamedTuple):
    """The slots of a sequence's tokens from `first` on: on the device, then on the host while it is
    swapped out.
    """

    request_id: int
    num_tokens: int
    device: tuple[Extent, ...]
    host: tuple[Extent, ...] = ()
    first: int = 0


def passed_on(name: str, *, changes: bool = True) -> Any:
    """A method that passes a call on."""

    def call(traced: "Traced", *arguments: Any) -> Any:
        if changes:
            traced._before_change()
        return getattr(traced.policy, name)(*arguments)

    return call


class Traced(MemoryPolicy):
    """Passes every call on to `policy`, and calls `before_change` ahead of those that may change
    it.

    While `stepwise` it promises no further steps, so that every block is seen to be taken in its
    own iteration. `parts` are the KV group and the slots for each token of every part of a
    sequence's table.
    """

    extend, advance, shrink = passed_on("extend"), passed_on("advance"), passed_on("shrink")
    publish, register_prefix = passed_on("publish"), passed_on("register_prefix")
    load, background, landed = passed_on("load"), passed_on("background"), passed_on("landed")
    table, usage, footprint = (
        passed_on(name, changes=False) for name in ("table", "usage", "footprint")
    )

    def __init__(self, policy: MemoryPolicy, before_change: Callable[[], object]) -> None:
        self.policy = policy
        self.stepwise = False
        self.parts: list[tuple[int, int]] = [(0, 1)]
        self._before_change = before_change
        self._sequences: dict[int, Sequence] = {}
        self._swapped: dict[int, Held] = {}
        self._extents: dict[Extent, Extent] = {}
        for name in dir(MemoryPolicy):  # traits, and questions that change nothing
            if not name.startswith("_") and name not in (*vars(Traced), "output_len"):
                setattr(self, name, getattr(policy, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def held(self) -> dict[int, Held]:
        """What every sequence holds now, in order of admission, by sequence id * number of parts +
        part.
        """
        found = dict[int, Held]()
        for seq_id, seq in self._sequences.items():
            if seq_id in self._swapped:
                found[seq_id * len(self.parts)] = self._swapped[seq_id]
                continue
            tables = self.policy.group_tables(seq)
            self.parts = [(table.group, table.slots_per_token) for table in tables]
            for part, table in enumerate(tables):
                held = Held(
                    seq.request_id, seq.num_slots, self._known(table.extents), first=table.first
                )
                found[seq_id * len(tables) + part] = held
        return found

    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        self._before_change()
        answers = self.policy.admit(seqs, num_tokens)
        if isinstance(answers, list):
            self._sequences.update((seq.seq_id, seq) for seq in seqs)
        return answers

    def release(self, seq: Sequence) -> None:
        self._before_change()
        self.policy.release(seq)
        del self._sequences[seq.seq_id]
        self._swapped.pop(seq.seq_id, None)

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        self._before_change()
        ops = self.policy.fork(parent, child)
        self._sequences[child.seq_id] = child
        return ops

    def move(self, seqs: list[Sequence], tier: str) -> Answer:
        self._before_change()
        tables = [] if tier == DEVICE else [self._known(self.policy.table(seq)) for seq in seqs]
        answer = self.policy.move(seqs, tier)
        if not isinstance(answer, Grant):
            return answer
        if tier == DEVICE:
            for seq in seqs:
                del self._swapped[seq.seq_id]
        copies = (
            copy for move in answer.ops.moves if move.source == DEVICE for copy in move.copies
        )
        target = {copy.src: copy.dst for copy in copies}
        for seq, table in zip(seqs, tables, strict=False):
            kept = tuple(extent for extent in table if extent.start not in target)
            moved = tuple(
                Extent(target[start], length) for start, length in table if start in target
            )
            self._swapped[seq.seq_id] = Held(seq.request_id, seq.num_slots, kept, moved)
        return answer

    def guaranteed_steps(self, batch: Batch) -> int:
        return 0 if self.stepwise else self.policy.guaranteed_steps(batch)

    def _known(self, extents: list[Extent]) -> tuple[Extent, ...]:
        """These extents; equal ones are one object, because thousands of frames repeat them."""
        return tuple([self._extents.setdefault(extent, extent) for extent in extents])
