"""The meter of iterations with drafts: never-used slots by footprint, not by tables."""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Usage
from testbed.engine.meter import Meter, PlainMeter
from testbed.sched.plan import Plan


class DraftMeter(PlainMeter):
    """Equals the plain meter exactly, for policies that say their footprints.

    Sequences with drafts grow by different numbers, and may have slots behind their last token, so
    that each is looked at in each iteration; but no table is walked.
    """

    def repeated_reads(self, plan: Plan, used: Usage) -> int:
        return Meter.repeated_reads(self, plan, used)

    def unused(self, group: SequenceGroup) -> int:
        """The same of a group of one sequence, which shares no slots with itself."""
        if not group.resident:
            return 0
        seq = group.sequences[0]
        final_len = self.outputs.requests[group.request.request_id].final_len
        footprint = self.memory.footprint(seq)
        assert footprint is not None, "chosen for a policy that says its footprints"
        held = footprint.slots_of(seq.num_slots)
        return held - min(held, max(final_len, seq.num_slots))
