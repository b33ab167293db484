"""What a scheduler does to a memory policy, as values that can be drawn and shrunk."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Register:
    """A provider's prefix of num_tokens tokens; only ahead of everything else, and where the policy shares."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Admit:
    """A new request of num_seqs sequences with prompts of prompt_len tokens, that will end with output_len more
    at most.

    Its first `shared` tokens are those of `story`, which other prompts may share too. Room is asked for its first
    `chunk` tokens, 0 for the whole prompt. It begins with the registered prefix if it is `provided`.
    """

    prompt_len: int
    output_len: int
    story: int = 0
    shared: int = 0
    chunk: int = 0
    num_seqs: int = 1
    provided: bool = False


@dataclass(frozen=True, slots=True)
class Flood:
    """Requests that share nothing fill the pool to its last block and leave it again: whatever is cached is evicted."""


@dataclass(frozen=True, slots=True)
class Run:
    """The plan is carried out: what was placed is computed."""


@dataclass(frozen=True, slots=True)
class Extend:
    """num_tokens more for a resident group that is not in the batch: of its prompt, or generated."""

    pick: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """num_tokens more for the whole lockstep batch."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Join:
    """A group whose prompt is computed joins the lockstep batch, or leaves it if it is a member."""

    pick: int


@dataclass(frozen=True, slots=True)
class Refork:
    """A candidate of a beam gives up its tokens and goes on with those of another one."""

    pick: int
    parent: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A group goes to the host, or back."""

    pick: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """A resident group loses its room and will compute everything again."""

    pick: int


@dataclass(frozen=True, slots=True)
class Return:
    """A preempted group asks for room for prompt and generated tokens; a single sequence for `chunk` first, if any."""

    pick: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """A group ends, wherever it is."""

    pick: int


Call: TypeAlias = Register | Admit | Flood | Run | Extend | Step | Join | Refork | Move | Preempt | Return | Release
