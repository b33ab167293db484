"""Beam search (section 4.4, Fig. 9): which candidates survive a step, and which of them go on in two."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Request

Replacement: TypeAlias = tuple[int, int]


class BeamModel(ABC):
    """Chooses parents; a plug-in. A real engine would take them from the model's own scores."""

    @abstractmethod
    def replacements(self, request: Request) -> Seq[tuple[Replacement, ...]]:
        """For every step from the second output token on: (parent, child) pairs, by candidate.

        Each child is a candidate that did not survive and goes on from the parent's tokens. Candidates that are not
        named as a child go on from their own. At least output_len - 1 steps.
        """


class SyntheticBeams(BeamModel):
    """Candidates from synthetic next-token scores.

    At every step each of the k candidates has a score of its own, minus an exponential variate; its j-th best token
    lies `concentration` times the sum of j more exponential variates below that. The best k of all k * k survive. A
    larger concentration means a model that is surer of its next token, hence fewer changes of parent; 0 lets one
    candidate take everything. The draws depend on seed and request only, so every memory policy sees the same beams.
    """

    def __init__(self, concentration: float = 7.0, seed: int = 0) -> None:
        if concentration < 0:
            raise InputError(f"beams.concentration is {concentration}; it must be at least 0")
        self.concentration = concentration
        self.seed = seed

    def replacements(self, request: Request) -> Seq[tuple[Replacement, ...]]:
        steps, k = request.output_len - 1, request.num_seqs
        rng = np.random.default_rng([self.seed, 2, request.request_id])
        best = rng.exponential(size=(steps, k, 1))
        gaps = self.concentration * rng.exponential(size=(steps, k, k - 1)).cumsum(axis=2)
        behind = np.concatenate([best, best + gaps], axis=2).reshape(steps, k * k)
        survivors = np.sort(np.argpartition(behind, k - 1, axis=1)[:, :k] // k, axis=1)
        return [pairs(tuple(row)) for row in survivors.tolist()]


@lru_cache(1 << 16)
def pairs(parents: tuple[int, ...]) -> tuple[Replacement, ...]:
    """Sorted parents, one a survivor, as replacements: first uses of a parent stay where they are."""
    free = [child for child in range(len(parents)) if child not in parents]
    again = [parent for i, parent in enumerate(parents) if i and parents[i - 1] == parent]
    return tuple(zip(again, free, strict=True))
