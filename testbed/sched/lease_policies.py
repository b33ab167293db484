"""Policies on the slots of groups that are over: they then stay by a lease."""

from testbed.core.sequence import SequenceGroup


class LeasePolicy:
    """Frees a finished group's slots at once: slots are given back when a group has its whole
    output.
    """

    def needs(self, group: SequenceGroup) -> bool:
        """True if the slots of the group, which has its whole output, stay until
        `SchedulerState.end_leases` is called.
        """
        return False


class KeepAll(LeasePolicy):
    """Every group's: another engine is to have them."""

    def needs(self, group: SequenceGroup) -> bool:
        return True


class KeepSessions(LeasePolicy):
    """Leases for groups in a session, whose next prompt may begin with them."""

    def needs(self, group: SequenceGroup) -> bool:
        return group.request.session is not None
