"""Beam search (section 4.4, Fig. 9): which candidates survive a step, and which of them continue in
two.
"""

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle, islice
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.units import Count, NonNegative

Replacement: TypeAlias = tuple[int, int]
Ahead: TypeAlias = Iterator[tuple[int, tuple[Replacement, ...]]]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

NUM_SEARCHES, NUM_STEPS = 128, 1024
STRIDE = 97_003  # between the places of consecutive requests; prime
EXTRA_TOKENS = 4  # a stick is broken into k pieces and these: few of the best k are missed
COLUMNS = ["request", "step", "parent", "child"]
FIRST_STEP = 2  # output tokens that a candidate has when parents are chosen for the first time


class BeamModel(ABC):
    """Chooses parents; a plug-in of the simulator. A real engine takes them from the model's own
    scores.
    """

    @abstractmethod
    def parents(self, request: Request, num_generated: int) -> tuple[Replacement, ...]:
        """(parent, child) pairs of candidates.

        Each child is a candidate that did not survive and continues from the parent's tokens.
        Candidates that are not named as a child continue from their tokens.

        Args:
            request: one that is a beam.
            num_generated: output tokens that each candidate has, at least 2.
        """

    def changes(self, request: Request, num_generated: int) -> Ahead:
        """`parents` from num_generated output tokens on, with their number; those of a step at
        which all candidates survive may be left out.

        Args:
            request: one that is a beam.
            num_generated: output tokens that each candidate will have at the first step.
        """
        for number in range(num_generated, request.output_len + 1):
            yield number, self.parents(request, number)

    def prepare(self, width: int) -> None:  # noqa: B027 (most have nothing to do)
        """Compute what the parents of beams of this width need, if it takes long. A server calls
        it in a thread before the first such request; raises InputError for a width that cannot be
        answered.

        Args:
            width: sequences of a beam.
        """


class SyntheticBeams(BeamModel):
    """Beam search on synthetic next-token probabilities.

    At every step each of the k candidates draws a distribution over next tokens by breaking a stick
    (a Dirichlet process): token j takes a share 1 - u^(1/concentration) of what those before it
    left; the best k of all continuations survive. The larger the concentration, the more often
    parents change. Requests follow one long search at places that depend on seed and request only:
    every memory policy sees the same beams.
    """

    def __init__(self, concentration: NonNegative = 0.57, seed: Count = 0) -> None:
        if concentration <= 0:
            raise InputError(
                key="beams.concentration", value=concentration, problem="must be above 0"
            )
        self.concentration = concentration
        self.seed = seed

    def parents(self, request: Request, num_generated: int) -> tuple[Replacement, ...]:
        steps = search(request.num_seqs, self.concentration, self.seed)
        return steps[(request.request_id * STRIDE + num_generated - FIRST_STEP) % len(steps)]

    def changes(self, request: Request, num_generated: int) -> Ahead:
        steps = search(request.num_seqs, self.concentration, self.seed)
        first = (request.request_id * STRIDE + num_generated - FIRST_STEP) % len(steps)
        num_steps = request.output_len + 1 - num_generated
        ahead = steps[first : first + max(num_steps, 0)]
        ahead += islice(cycle(steps), max(num_steps - len(ahead), 0))
        return filter(itemgetter(1), enumerate(ahead, num_generated))

    def prepare(self, width: int) -> None:
        search(width, self.concentration, self.seed)


@lru_cache(16)
def search(k: int, concentration: float, seed: int) -> list[tuple[Replacement, ...]]:
    """The steps of NUM_SEARCHES searches of width k, one search after another."""
    rng = np.random.default_rng([seed, 2, k])
    totals = np.zeros((NUM_SEARCHES, k))
    history = np.empty((NUM_STEPS, NUM_SEARCHES, k), dtype=np.int64)
    for step in range(NUM_STEPS):
        left = -rng.exponential(
            1 / concentration, (NUM_SEARCHES, k, k + EXTRA_TOKENS)
        )  # log share that a token leaves
        taken = np.log(-np.expm1(left))
        taken[:, :, 1:] += left.cumsum(axis=2)[:, :, :-1]
        history[step], totals = survivors(totals, taken)
    return [
        pairs(tuple(row)) for row in np.sort(history.swapaxes(0, 1).reshape(-1, k), axis=1).tolist()
    ]


def survivors(totals: Floats, ahead: Floats) -> tuple[Ints, Floats]:
    """One step of many searches at once: the parent of each candidate that continues, and its new
    total.

    totals: [search, candidate]; ahead: [search, candidate, token], log-probabilities. A parent's
    first continuation stays in its place; the others take the places of candidates that did not
    survive, as in `pairs`. Totals are relative to the best of their search.
    """
    num, k = totals.shape
    scores = (totals[:, :, None] + ahead).reshape(num, -1)
    best = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    parents = best // ahead.shape[2]
    again = np.zeros((num, k), dtype=bool)
    again[:, 1:] = parents[:, 1:] == parents[:, :-1]
    alive = np.zeros((num, k), dtype=bool)
    np.put_along_axis(alive, parents, True, axis=1)
    free = np.argsort(alive, axis=1, kind="stable")
    turn = np.maximum(again.cumsum(axis=1) - 1, 0)
    place = np.where(again, np.take_along_axis(free, turn, axis=1), parents)
    chosen, reached = np.empty_like(parents), np.empty_like(totals)
    np.put_along_axis(chosen, place, parents, axis=1)
    np.put_along_axis(reached, place, np.take_along_axis(scores, best, axis=1), axis=1)
    return chosen, reached - reached.max(axis=1, keepdims=True)


@lru_cache(1 << 16)
def pairs(parents: tuple[int, ...]) -> tuple[Replacement, ...]:
    """Sorted parents, one a survivor, as replacements: first uses of a parent stay where they
    are.
    """
    free = [child for child in range(len(parents)) if child not in parents]
    again = [parent for i, parent in enumerate(parents) if i and parents[i - 1] == parent]
    return tuple(zip(again, free, strict=True))


class RecordedBeams(BeamModel):
    """A CSV with a line for each candidate that did not survive: request, step, parent, child.

    step: the output tokens that each candidate then has, from 2 on; at one without lines all
    survive, and a line without parent and child says so if a search ends. Requests follow the
    searches in turn; a longer output goes through its search again.
    """

    def __init__(self, path: str) -> None:
        self.path = str(path)
        searches: dict[int, dict[int, tuple[Replacement, ...]]] = {}
        with open(self.path, newline="") as file:
            lines = csv.reader(file)
            if next(lines, None) != COLUMNS:
                raise InputError(
                    key=self.path, problem=f"its first line must be {','.join(COLUMNS)}"
                )
            for cells in lines:
                request, step, *pair = self._numbers(lines.line_num, cells)
                pairs = searches.setdefault(request, {}).setdefault(step, ())
                searches[request][step] = self._with(pairs, pair, lines.line_num) if pair else pairs
        if not searches:
            raise InputError(
                key=self.path, problem="it has no lines; a record of searches needs some"
            )
        self.searches = list(searches.values())

    def parents(self, request: Request, num_generated: int) -> tuple[Replacement, ...]:
        search = self.searches[request.request_id % len(self.searches)]
        step = (num_generated - FIRST_STEP) % (max(search) - FIRST_STEP + 1) + FIRST_STEP
        pairs = search.get(step, ())
        if any(max(pair) >= request.num_seqs for pair in pairs):
            raise InputError(
                key=self.path,
                problem=f"{pairs} at step {step} for a beam of width {request.num_seqs}",
            )
        return pairs

    def _numbers(self, line: int, cells: list[str]) -> list[int]:
        """Request, step, and parent and child unless the line says that all survive."""
        numbers = cells[:2] if cells[2:] == ["", ""] else cells
        if (
            len(cells) != len(COLUMNS)
            or not all(cell.isdecimal() for cell in numbers)
            or int(cells[1]) < FIRST_STEP
        ):
            wanted = f"{len(COLUMNS)} whole numbers, the step at least {FIRST_STEP}"
            raise InputError(
                key=f"{self.path}, line {line}", problem=f"{','.join(cells)!r}; a line has {wanted}"
            )
        return list(map(int, numbers))

    def _with(
        self, pairs: tuple[Replacement, ...], pair: list[int], line: int
    ) -> tuple[Replacement, ...]:
        pairs = (*pairs, (pair[0], pair[1]))
        children = {child for _, child in pairs}
        if len(children) < len(pairs) or children & {parent for parent, _ in pairs}:
            raise InputError(
                key=f"{self.path}, line {line}",
                problem=f"candidate {pair[1]} replaces, or is replaced, twice in a step",
            )
        return pairs
