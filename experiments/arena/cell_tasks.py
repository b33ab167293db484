"""Cells of the arena as the tasks of a launcher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

PER_TASK = 25


@dataclass(frozen=True)
class Batch:
    """Calls of one task, one after the other. Pickles if they do."""

    calls: Sequence[Callable[[], Any]]

    def __call__(self) -> list[Any]:
        return [call() for call in self.calls]


def by_tasks(
    calls: Sequence[Callable[[], Any]], launch: Callable[[Sequence[Batch]], Sequence[list[Any]]]
) -> list[Any]:
    """The answers of the calls, PER_TASK of which are one task of the launcher: each task starts a
    process that composes all that ships before the first cell.
    """
    firsts = range(0, len(calls), PER_TASK)
    batches = [Batch(calls[first : first + PER_TASK]) for first in firsts]
    return [*chain.from_iterable(launch(batches))]
