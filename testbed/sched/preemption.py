"""Whom to preempt, and how the victim comes back (section 4.5)."""

from abc import ABC, abstractmethod
from enum import Enum

from testbed.core.sequence import SequenceGroup


class Recovery(Enum):
    """How a preempted group gets its K and V back."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


class PreemptionRule(ABC):
    """Victim order and recovery; always the whole group or nothing of it."""

    def victim(self, running: dict[int, SequenceGroup]) -> SequenceGroup:
        """The resident group to preempt. First come, first served admits in order of arrival: the last came last."""
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
