"""Whom to preempt, and how the victim comes back (section 4.5): all-or-nothing, the whole group of a request."""

from abc import ABC, abstractmethod
from enum import Enum

from testbed.core.batch import Batch
from testbed.core.foresight import Foresight
from testbed.core.sequence import SequenceGroup
from testbed.cost.model import CostModel


class Recovery(Enum):
    """How a preempted group gets its K and V back."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


class PreemptionRule(Foresight, ABC):
    """Victim order and recovery; always the whole group or nothing of it (gang scheduling of a request's sequences).

    `cost` is the run's cost model, for a rule that compares prices.
    """

    def __init__(self, cost: CostModel | None = None) -> None:
        self.cost = cost

    def victim(self, running: dict[int, SequenceGroup], batch: Batch) -> SequenceGroup:
        """The resident group to preempt, from their live counts. First come, first served: the last that came.

        `running` holds the resident groups by request id, in order of admission; `batch` those that decode.
        """
        return next(reversed(running.values()))

    @abstractmethod
    def recovery(self, group: SequenceGroup) -> Recovery:
        """How `group` will come back; a full host pool falls back to recompute."""


class Recompute(PreemptionRule):
    """Release everything; prefill prompt and generated tokens again in one iteration."""

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.RECOMPUTE


class Swap(PreemptionRule):
    """Move everything to the host and back."""

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.SWAP


class RecomputeSingleSwapGroup(PreemptionRule):
    """The 2023 system: recompute for a single sequence, swap for a group of several."""

    def recovery(self, group: SequenceGroup) -> Recovery:
        return Recovery.RECOMPUTE if len(group.sequences) == 1 else Recovery.SWAP
