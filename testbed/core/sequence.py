"""A token stream being generated, and the streams of one request."""

from collections.abc import Sequence as Seq
from enum import Enum

from testbed.core.request import Request


class SequenceStatus(Enum):
    """Where a sequence group stands."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class OracleError(RuntimeError):
    """A policy that does not declare `reads_output_len` asked for a true output length."""


class Sequence:
    """One token stream, as a memory policy sees it.

    The output length is the future: reading `final_len` raises OracleError unless the policy declares that it does.
    """

    __slots__ = ("_final_len", "_oracle", "content", "prefix", "prompt_len", "request_id", "seq_id", "tokens_per_id")

    def __init__(self, seq_id: int, request: Request, *, oracle: bool = False) -> None:
        self.seq_id = seq_id
        self.request_id = request.request_id
        self.prompt_len = request.prompt_len
        self.content = request.prompt_ids
        self.tokens_per_id = request.tokens_per_id
        self.prefix = request.prefix
        self._final_len = request.prompt_len + request.output_len
        self._oracle = oracle

    @property
    def final_len(self) -> int:
        """Prompt and output tokens together, known beforehand only to an oracle."""
        if not self._oracle:
            raise OracleError("only a policy with reads_output_len = True may read a sequence's final_len")
        return self._final_len

    def __repr__(self) -> str:
        return f"Sequence({self.seq_id})"


class SequenceGroup:
    """The sequences of one request: scheduled, preempted and resumed together.

    resident lists those that hold room: before the fork at the end of the prompt phase only the first. Each holds room
    for num_tokens tokens and has num_generated output tokens; a decoding sequence stores one token fewer than it has,
    because the newest token's K and V are written by the next iteration. While the group is in a lockstep batch both
    are as of batch step `joined_at`. todo lists what its prompt phase has yet to compute: (new tokens, tokens stored
    before them). replacements is what the beam model said of a beam request, step by step.
    """

    __slots__ = (
        "finish_step",
        "first_ps",
        "joined_at",
        "num_generated",
        "num_recomputes",
        "num_swaps",
        "num_tokens",
        "replacements",
        "request",
        "resident",
        "sequences",
        "status",
        "todo",
    )

    def __init__(self, request: Request, sequences: list[Sequence]) -> None:
        self.request = request
        self.sequences = sequences
        self.status = SequenceStatus.WAITING
        self.resident: list[Sequence] = []
        self.todo: list[tuple[int, int]] = []
        self.replacements: Seq[tuple[tuple[int, int], ...]] = ()
        self.num_tokens = 0
        self.num_generated = 0
        self.joined_at = 0
        self.finish_step = -1
        self.first_ps = -1
        self.num_swaps = 0
        self.num_recomputes = 0

    @property
    def prefill_len(self) -> int:
        """Tokens of each sequence that a prompt phase must store: after recompute also what was generated."""
        return self.request.prompt_len + self.num_generated

    def __repr__(self) -> str:
        return f"SequenceGroup({self.request.request_id}, {self.status.value})"
