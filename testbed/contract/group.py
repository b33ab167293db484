"""The sequences of one request, as the harness of the contract schedules them."""

from dataclasses import dataclass, field

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE


@dataclass(slots=True, eq=False)
class Group:
    """Scheduled, preempted and resumed together; all of its sequences are equally long.

    held lists those that hold room: where memory is shared only the first, until the prompt is computed. tier is where
    they are, None while they hold nothing. The prompt phase stores num_tokens tokens of each: after recompute what
    was generated too. `placed` of the first sequence's are computed, or will be when the plan has run.
    """

    request: Incoming
    sequences: list[Sequence]
    final_len: int
    num_tokens: int
    told: str = ""
    placed: int = 0
    tier: str | None = None
    held: list[Sequence] = field(default_factory=list)
    is_forked: bool = False

    @property
    def first(self) -> Sequence:
        """The sequence that computes the prompt."""
        return self.sequences[0]

    @property
    def differs(self) -> bool:
        """Whether its sequences have tokens of their own already."""
        return self.num_tokens > self.request.prompt_len

    @property
    def in_batch(self) -> bool:
        """Whether it decodes in lockstep."""
        return self.first.batch is not None

    @property
    def decodes(self) -> bool:
        """Whether it is on the device and its prompt phase is over."""
        return self.tier == DEVICE and self.placed >= self.num_tokens

    @property
    def left(self) -> int:
        """Tokens that each may still store."""
        return self.final_len - self.first.room
