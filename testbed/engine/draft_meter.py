"""The meter of iterations with drafts: never-used slots by footprint, not by tables."""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Usage
from testbed.engine.meter import Meter, PlainMeter
from testbed.engine.totals import SpanMemory
from testbed.sched.plan import Plan


class DraftMeter(PlainMeter):
    """Equals the plain meter exactly, for policies that say their footprints.

    Sequences with drafts grow by different numbers, and may have slots behind their last token, so
    that each is looked at in each iteration; but no table is walked.
    """

    def open(self, plan: Plan, used: Usage) -> None:
        running = self.state.running.values()
        self._first = SpanMemory(len(running), used, sum(map(self.unused, running)), 0)

    def repeated_reads(self, plan: Plan, used: Usage) -> int:
        return Meter.repeated_reads(self, plan, used)

    def unused(self, group: SequenceGroup) -> int:
        """The unused slots of a group of one sequence, which shares none with itself."""
        if not group.resident:
            return 0
        seq, predicts = group.sequences[0], self.memory.predicts
        final_len = seq.prompt_len + self.outputs.lengths[group.request_id]
        assert predicts is not None, "chosen for a policy that says its footprints"
        num_slots = seq.slots_offset  # as `num_slots`, outside a batch
        held = predicts.footprint(seq).slots_of(num_slots)
        used = final_len if final_len > num_slots else num_slots
        return held - used if held > used else 0
