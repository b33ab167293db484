"""Sequences, the batch in which they advance in lockstep, and the sequence group of one request."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from testbed.core.request import Incoming

I = TypeVar("I", bound="BatchIndex")  # noqa: E741


class Sequence:
    """One token stream, as a memory policy sees it; it does not contain its true output length.

    num_slots and num_stored are kept as offsets from the batch's counters while the sequence is in
    a batch.

    Attributes:
        seq_id: its number; ties are decided by it.
        request_id: the number of its request.
        prompt_len: tokens of the prompt.
        prompt_ids: the prompt's content, one id for each tokens_per_id tokens; None: content that
            no other request has.
        tokens_per_id: tokens that an id names.
        registered_prefix: leading prompt tokens that are a registered prefix; 0 for none.
        session: the conversation or job to which it belongs; None if it is unknown.
        priority: the class of its request; a smaller number is more urgent.
        answer_id: names what it generates (see Incoming); None if it has siblings, too.
        num_preemptions: how often it was preempted.
        batch: the batch that it is in, or None.
        num_slots: slots that it may write; `admit`, `extend` and `fork` change it.
        num_stored: its tokens whose K and V are in the cache; an iteration that has run changes it,
            and a grant that found cached tokens.
        version: raised by whatever changes its table in another way than at its end, as a fork, a
            move, a copy of a shared block or a return of slots does. A table that was read at this
            version is a prefix of the present one.
    """

    __slots__ = (
        "_changes",
        "answer_id",
        "batch",
        "num_preemptions",
        "priority",
        "prompt_ids",
        "prompt_len",
        "registered_prefix",
        "request_id",
        "seq_id",
        "session",
        "slots_offset",
        "stored_offset",
        "tokens_per_id",
    )

    def __init__(self, seq_id: int, request: Incoming) -> None:
        """A sequence without slots.

        Args:
            seq_id: its number.
            request: that it answers.
        """
        self.seq_id = seq_id
        self.request_id = request.request_id
        self.prompt_len = request.prompt_len
        self.prompt_ids = request.prompt_ids
        self.tokens_per_id = request.tokens_per_id
        self.registered_prefix = request.registered_prefix
        self.session = request.session
        self.priority = request.priority
        self.answer_id = request.answer_id if request.num_seqs == 1 else None
        self.num_preemptions = 0
        self.batch: Batch | None = None
        self.slots_offset = 0
        self.stored_offset = 0
        self._changes = 0

    @property
    def version(self) -> int:
        """The version of its table."""
        return self._changes if self.batch is None else self._changes + self.batch.changes

    def change_table(self) -> None:
        """Raise the version. Called by a policy too, if a call changes the table of a sequence
        that is none of the call's arguments, or if `publish` does.
        """
        self._changes += 1

    def id_at(self, place: int) -> int:
        """The id of the tokens from place * tokens_per_id on, of prompt and answer together, if
        the answer has a name.

        Args:
            place: from 0.
        """
        assert self.answer_id is not None, "its answer has a name"
        if self.prompt_ids is None or place >= self.prompt_len // self.tokens_per_id:
            return self.answer_id + place
        return self.prompt_ids[place]

    @property
    def num_slots(self) -> int:
        """Allocated slots that the sequence may write."""
        return self.slots_offset if self.batch is None else self.slots_offset + self.batch.extended

    @num_slots.setter
    def num_slots(self, num_tokens: int) -> None:
        if self.batch is not None:
            raise ValueError(
                f"{self}: num_slots is set by its batch (remove the sequence from the batch first)"
            )
        self.slots_offset = num_tokens
        self._changes += 1

    @property
    def num_stored(self) -> int:
        """Tokens of the sequence whose K and V are in the cache."""
        return self.stored_offset if self.batch is None else self.stored_offset + self.batch.steps

    @num_stored.setter
    def num_stored(self, num_tokens: int) -> None:
        if self.batch is not None:
            raise ValueError(
                f"{self}: num_stored is set by its batch (remove the sequence from the batch first)"
            )
        self.stored_offset = num_tokens

    def store(self, num_tokens: int) -> None:
        """The first num_tokens tokens, at least, of a sequence that is in no batch are stored.

        Args:
            num_tokens: tokens whose K and V are in the cache.

        Raises ValueError for a sequence of a batch, which counts the tokens of its members.
        """
        if self.batch is not None:
            raise ValueError(f"num_stored of {self} is set by its batch (remove the sequence)")
        if num_tokens > self.stored_offset:
            self.stored_offset = num_tokens

    def set_counts(self, *, num_slots: int, num_stored: int) -> None:
        """Set both counts of a sequence that is in no batch, whose slots have come or gone.

        Args:
            num_slots: slots that it may write.
            num_stored: tokens whose K and V are in the cache.
        """
        assert self.batch is None, "the batch counts the slots and tokens of its members"
        self.slots_offset = num_slots
        self.stored_offset = num_stored
        self._changes += 1

    def __repr__(self) -> str:
        return f"Sequence({self.seq_id})"


class BatchIndex(ABC):
    """A policy's index of a batch, so that a step does not iterate over its sequences."""

    @abstractmethod
    def added(self, seq: Sequence) -> None:
        """Called after `seq` has joined the batch; its counts are offsets from the batch's
        counters.

        Args:
            seq: the member that has joined.
        """

    @abstractmethod
    def removed(self, seq: Sequence) -> None:
        """Called before `seq` leaves the batch, and before it is released or moved.

        Args:
            seq: the member that leaves.
        """


class Batch:
    """Sequences in order of joining.

    Two counters change for all members at once; a member's counts are offsets from these.

    Attributes:
        extended: steps that have allocated slots.
        steps: steps that have run.
        sequences: the members by seq_id.
        changes: raised if an extension copies blocks: the members' versions count it.
    """

    __slots__ = ("_offsets", "_slot_counts", "changes", "extended", "indexes", "sequences", "steps")

    def __init__(self) -> None:
        self.extended = self.steps = self.changes = self._slot_counts = 0
        self.sequences: dict[int, Sequence] = {}
        self.indexes: dict[object, Any] = {}
        self._offsets: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences.values())

    @property
    def context(self) -> int:
        """The sum of the members' num_slots."""
        return self._slot_counts + self.extended * len(self.sequences)

    @property
    def max_context_len(self) -> int:
        """The largest num_slots of a member, 0 for an empty batch."""
        return self.extended - self._offsets[0][0] if self._offsets else 0

    def next_reads(self) -> tuple[int, int]:
        """`context` and `max_context_len` after one more step."""
        extended = self.extended + 1
        return self._slot_counts + extended * len(self.sequences), extended - self._offsets[0][0]

    def index(self, owner: object, make: Callable[["Batch"], I]) -> I:
        """The index that `owner` keeps on this batch; the first call builds it.

        Args:
            owner: the policy that keeps the index.
            make: builds it, empty, of the batch; the members are added after it.
        """
        index = self.indexes.get(owner)
        if index is None:
            index = self.indexes[owner] = make(self)
            for seq in self:
                index.added(seq)
        return index

    def add(self, seq: Sequence) -> None:
        """Add a sequence; its counts become offsets from the batch's counters.

        Args:
            seq: one that is in no batch.
        """
        seq_id, offset = seq.seq_id, seq.slots_offset - self.extended
        self.sequences[seq_id] = seq
        seq.slots_offset = offset
        seq.stored_offset -= self.steps
        seq.batch = self
        self._slot_counts += offset
        heapq.heappush(self._offsets, (-offset, seq_id))
        for index in self.indexes.values():
            index.added(seq)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence; its counts no longer depend on the batch.

        Args:
            seq: a member.
        """
        for index in self.indexes.values():
            index.removed(seq)
        seq_id, offset = seq.seq_id, seq.slots_offset
        del self.sequences[seq_id]
        self._slot_counts -= offset
        if (
            self._offsets[0][1] == seq_id
        ):  # drop offsets of sequences that have left until the first is a member's
            offsets, members = self._offsets, self.sequences
            while offsets and (
                offsets[0][1] not in members
                or members[offsets[0][1]].slots_offset != -offsets[0][0]
            ):
                heapq.heappop(offsets)
        seq.batch = None
        seq.slots_offset = offset + self.extended
        seq.stored_offset += self.steps
        seq._changes += self.changes

    def extend(self, num_tokens: int) -> None:
        """Every member has num_tokens more slots.

        Args:
            num_tokens: slots more for each member.
        """
        self.extended += num_tokens

    def take_step(self) -> tuple[int, int]:
        """Every member has one more slot, to which the next step writes; `context` and
        `max_context_len` then.
        """
        extended = self.extended = self.extended + 1
        context = self._slot_counts + extended * len(self.sequences)
        return context, extended - self._offsets[0][0] if self._offsets else 0

    def advance(self, steps: int, extended: int = 0) -> None:
        """Count `steps` more stored tokens, and `extended` more slots, of each member.

        Args:
            steps: tokens more that each member has stored.
            extended: slots more that each has, of steps taken at once.
        """
        self.steps += steps
        self.extended += extended


def passing_batch(seqs: Iterable[Sequence]) -> Batch:
    """A batch for one call; the caller empties it by `disband`."""
    batch = Batch()
    for seq in seqs:
        batch.add(seq)
    return batch


def batch_of(seq: Sequence) -> Batch:
    """`passing_batch` of one sequence: a new batch has counted nothing, so that its counts stay as
    they are.
    """
    batch, seq_id, num_slots = Batch(), seq.seq_id, seq.slots_offset
    batch.sequences[seq_id] = seq
    batch._slot_counts, batch._offsets = num_slots, [(-num_slots, seq_id)]
    seq.batch = batch
    return batch


def disband(batch: Batch) -> None:
    """All members leave a passing batch, which is not used again."""
    if batch.indexes:
        for seq in list(batch.sequences.values()):
            batch.remove(seq)
        return
    for seq in batch.sequences.values():  # as by `remove`; what the batch counts is forgotten
        seq.batch = None
        seq.slots_offset += batch.extended
        seq.stored_offset += batch.steps
        seq._changes += batch.changes


class SequenceStatus(Enum):
    """The states of a sequence group."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"
    CANCELLED = "cancelled"


# By these names, for Python looks up an attribute of an Enum thirty times as slowly.
WAITING, PREFILLING, RUNNING, SWAPPED, FINISHED, CANCELLED = SequenceStatus


class Item(NamedTuple):
    """Prefill work that remains: `new` tokens of a sequence that follow `num_stored` stored
    ones.
    """

    seq: Sequence
    new: int
    num_stored: int


class SequenceGroup:
    """The sequences of one request; the scheduler schedules, preempts and swaps in the whole group.

    `resident` lists the sequences with allocated slots: if memory is shared only the first,
    until the fork at the end of prefill. Each sequence has num_generated output tokens; a decoding
    one stores one token fewer than it has, because the next iteration writes the newest token's K
    and V. `todo` lists the prefill work that remains. If the scheduler orders by `rank`, the
    smallest is served first. num_cached: prompt tokens that a cache had when the group was first
    admitted; -1 before, and if another engine has computed the prompt.
    """

    __slots__ = (
        "batch",
        "generated_offset",
        "num_cached",
        "num_recomputes",
        "num_swaps",
        "rank",
        "request",
        "request_id",
        "resident",
        "sequences",
        "status",
        "todo",
    )

    def __init__(self, request: Incoming, sequences: list[Sequence]) -> None:
        self.request = request
        self.request_id = request.request_id
        self.sequences = sequences
        self.status = WAITING
        self.resident: list[Sequence] = []
        self.todo: list[Item] = []
        self.num_swaps = 0
        self.num_recomputes = 0
        self.num_cached = -1
        self.rank: tuple[int, ...] = ()
        self.batch: Batch | None = None
        self.generated_offset = 0

    @property
    def num_generated(self) -> int:
        """Output tokens of each sequence."""
        return (
            self.generated_offset
            if self.batch is None
            else self.generated_offset + self.batch.steps
        )

    @property
    def prefill_len(self) -> int:
        """Tokens of each sequence that prefill must store; after recompute these include the
        generated tokens.
        """
        at_rest = self.request.prompt_len + self.generated_offset
        return at_rest if self.batch is None else at_rest + self.batch.steps

    def generate(self, num_tokens: int = 1) -> None:
        """Count num_tokens more output tokens for each sequence, from an iteration that was not a
        step of its batch.
        """
        assert self.batch is None, "the batch counts the tokens of a decoding group"
        self.generated_offset += num_tokens

    def join_batch(self, batch: Batch) -> None:
        """The group decodes with the batch from its next step on."""
        self.batch = batch
        self.generated_offset -= batch.steps
        for seq in self.sequences:
            batch.add(seq)

    def leave_batch(self) -> None:
        """The group stops decoding; its counts no longer depend on the batch."""
        batch, self.batch = self.batch, None
        assert batch is not None, "only a group that decodes can leave its batch"
        self.generated_offset += batch.steps
        for seq in self.sequences:
            batch.remove(seq)

    def __repr__(self) -> str:
        return f"SequenceGroup({self.request_id}, {self.status.value})"
