"""Changes that are made between two iterations, such as a cancellation or a hand-over."""

from collections.abc import Callable
from typing import TypeAlias

Change: TypeAlias = Callable[[int], None]  # made at a boundary, whose time in ps it is given


class Changes:
    """Changes that wait for a boundary.

    due: those that are made at the next boundary; the plans in flight were made with these in mind.
    unplanned: those that came after the plan in flight was made. They wait until it has run, or
    until the plan behind it is about to be made.
    """

    def __init__(self) -> None:
        self.due: list[Change] = []
        self.unplanned: list[Change] = []

    def make_due(self) -> None:
        """The next plan is about to be made: all changes are made at the boundary before it."""
        self.due += self.unplanned
        self.unplanned.clear()

    def make(self, now_ps: int) -> bool:
        """Make those that are due; whether there were any."""
        due, self.due = self.due, []
        for change in due:
            change(now_ps)
        return bool(due)
