"""A token stream being generated, and the streams of one request."""

from enum import Enum
from typing import NamedTuple

from testbed.core.batch import Batch
from testbed.core.request import Incoming


class SequenceStatus(Enum):
    """Where a sequence group stands."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class Sequence:
    """One token stream, as a memory policy sees it. How long it will be is nowhere in it.

    room: slots that it may write; `admit`, `extend` and `fork` move it. stored: its tokens whose K and V are there; an
    iteration moves it when it has run, and a grant that found tokens. Both stand here while it is at rest, and on the
    batch's clock while it is a member. num_preemptions counts how often it had to give its room back.
    """

    __slots__ = (
        "batch",
        "content",
        "num_preemptions",
        "prefix",
        "prompt_len",
        "request_id",
        "room_offset",
        "seq_id",
        "stored_offset",
        "tokens_per_id",
    )

    def __init__(self, seq_id: int, request: Incoming) -> None:
        self.seq_id = seq_id
        self.request_id = request.request_id
        self.prompt_len = request.prompt_len
        self.content = request.prompt_ids
        self.tokens_per_id = request.tokens_per_id
        self.prefix = request.prefix
        self.num_preemptions = 0
        self.batch: Batch | None = None
        self.room_offset = 0
        self.stored_offset = 0

    @property
    def room(self) -> int:
        """Tokens that it has room for."""
        return self.room_offset if self.batch is None else self.room_offset + self.batch.extended

    @room.setter
    def room(self, num_tokens: int) -> None:
        if self.batch is not None:
            raise ValueError(f"{self} moves with its batch: nobody else may set its room")
        self.room_offset = num_tokens

    @property
    def stored(self) -> int:
        """Tokens of it whose K and V are there."""
        return self.stored_offset if self.batch is None else self.stored_offset + self.batch.steps

    @stored.setter
    def stored(self, num_tokens: int) -> None:
        if self.batch is not None:
            raise ValueError(f"{self} moves with its batch: nobody else may set what it stores")
        self.stored_offset = num_tokens

    def __repr__(self) -> str:
        return f"Sequence({self.seq_id})"


class Item(NamedTuple):
    """What a prompt phase has yet to compute: `new` tokens of a sequence behind `stored` ones."""

    seq: Sequence
    new: int
    stored: int


class SequenceGroup:
    """The sequences of one request: scheduled, preempted and resumed together.

    resident lists those that hold room: before the fork at the end of the prompt phase only the first, where memory is
    shared. Each sequence has num_generated output tokens; a decoding one stores one token fewer than it has, because
    the newest token's K and V are written by the next iteration. todo lists what the prompt phase has yet to compute.
    """

    __slots__ = (
        "batch",
        "generated_offset",
        "num_recomputes",
        "num_swaps",
        "request",
        "resident",
        "sequences",
        "status",
        "todo",
    )

    def __init__(self, request: Incoming, sequences: list[Sequence]) -> None:
        self.request = request
        self.sequences = sequences
        self.status = SequenceStatus.WAITING
        self.resident: list[Sequence] = []
        self.todo: list[Item] = []
        self.num_swaps = 0
        self.num_recomputes = 0
        self.batch: Batch | None = None
        self.generated_offset = 0

    @property
    def num_generated(self) -> int:
        """Output tokens of each sequence."""
        return self.generated_offset if self.batch is None else self.generated_offset + self.batch.steps

    @property
    def prefill_len(self) -> int:
        """Tokens of each sequence that a prompt phase must store: after recompute also what was generated."""
        steps = 0 if self.batch is None else self.batch.steps
        return self.request.prompt_len + self.generated_offset + steps

    def generate(self) -> None:
        """Each sequence has one output token more, by an iteration that was not a step of its batch."""
        assert self.batch is None, "a decoding group generates by the batch's clock"
        self.generated_offset += 1

    def leave(self) -> None:
        """The group no longer decodes; its counts are its own again."""
        batch, self.batch = self.batch, None
        assert batch is not None, "only a group that decodes can leave its batch"
        self.generated_offset += batch.steps
        for seq in self.sequences:
            batch.leave(seq)

    def __repr__(self) -> str:
        return f"SequenceGroup({self.request.request_id}, {self.status.value})"
