"""What a scheduler decided for one iteration, in words that both sides have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from testbed.core.request import Request


@dataclass(frozen=True, slots=True)
class Iteration:
    """tokens: how many tokens of which request are computed. preempted: who lost the slots since the iteration before.

    now_ps: when the iteration begins. free_blocks: blocks that no sequence holds once the iteration is planned.
    """

    now_ps: int
    tokens: Mapping[int, int]
    preempted: tuple[int, ...]
    free_blocks: int

    def decides_as(self, other: "Iteration") -> bool:
        """Whether both compute the same tokens of the same requests and preempt the same ones, in any order."""
        return self.tokens == other.tokens and sorted(self.preempted) == sorted(other.preempted)


class Side(Protocol):
    """A scheduler on a clock of constant iterations."""

    name: str

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """Every iteration that computes something, until all requests have ended. Once for each side."""

    def state(self) -> list[str]:
        """Its requests and its pool now, in lines that people read."""
