"""Changes that are made between two iterations, such as a cancellation or a hand-over."""

from collections.abc import Callable
from typing import TypeAlias

Change: TypeAlias = Callable[[int], None]  # made at a boundary, whose time in ps it is given


class Changes:
    """Changes that wait for a boundary. One that the plan in flight does not know waits until that
    plan has run, or until the plan behind it is about to be made.
    """

    def __init__(self) -> None:
        self._due: list[Change] = []  # every plan in flight, if there is any, was made after these
        self._unplanned: list[Change] = []  # a plan in flight was made before these

    def __bool__(self) -> bool:
        return bool(self._due or self._unplanned)

    @property
    def has_unplanned(self) -> bool:
        """Whether the next plan must wait for changes that no plan knows."""
        return bool(self._unplanned)

    def add(self, change: Change) -> None:
        """The change is made at a boundary to come."""
        self._unplanned.append(change)

    def make_due(self) -> None:
        """The next plan is about to be made: all changes are made at the boundary before it."""
        self._due += self._unplanned
        self._unplanned.clear()

    def make(self, now_ps: int) -> bool:
        """Make those that are due; whether there were any."""
        due, self._due = self._due, []
        for change in due:
            change(now_ps)
        return bool(due)
