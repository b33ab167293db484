"""What a scheduler may do beyond what every scheduler must do."""

from collections import deque
from typing import Protocol, runtime_checkable

from testbed.core.sequence import SequenceGroup


@runtime_checkable
class ChoosesOrder(Protocol):
    """It serves waiting requests in another order than that of arrival."""

    def choose_order(self, waiting: deque[SequenceGroup]) -> None:
        """Put the queue into the order of service before a plan.

        The order depends on the requests in the queue alone, not on the number of calls: a span
        makes none.
        """


def chooses_order(scheduler: object) -> ChoosesOrder | None:
    """The scheduler, if it chooses the order."""
    return scheduler if isinstance(scheduler, ChoosesOrder) else None
