"""Callbacks of an engine that works for others: it prefills for them, or decodes what they have
prefilled.
"""

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.sched.plan import Plan


class HandoverHooks:
    """An engine's part in hand-overs. Each method does nothing unless overridden.

    expected: prompt tokens of the requests, by id, that other engines prefill for this one.
    """

    def __init__(self) -> None:
        self.expected: dict[int, int] = {}

    def before_plan(self) -> None:
        """The next plan is about to be made, and memory may have been released."""

    def computed(self, plan: Plan, start_ps: int, end_ps: int) -> None:
        """A plan has run, once or several times."""

    def sent(self, request: Request) -> Request:
        """The request as its client has sent it."""
        return request

    def takes(self, group: SequenceGroup) -> bool:
        """True if another engine answers the group, which has its whole output here."""
        return False
