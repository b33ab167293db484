"""Splits the pool as section 3.1 does. A meter knows the true lengths; a policy need not."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from itertools import chain
from typing import Any

from testbed.core.sequence import Batch, Sequence, SequenceGroup
from testbed.core.slots import Usage
from testbed.cost.model import Affine
from testbed.engine.outputs import Outputs
from testbed.engine.totals import SharedSlots, SpanMemory
from testbed.sched.plan import Outcome, Plan, decoding, plain_int, wrong_answer
from testbed.sched.scheduler import Scheduler


class Meter(ABC):
    """Measures the pool in every iteration: `open` before it runs, `close` before the next plan."""

    def __init__(self, scheduler: Scheduler, outputs: Outputs) -> None:
        self.policy = scheduler.policy
        self.memory = scheduler.memory
        self.state = scheduler.state
        self.outputs = outputs

    @abstractmethod
    def open(self, plan: Plan, used: Usage) -> None:
        """Measure the pool as the first iteration of this plan sees it; `used` is the policy's own
        account of it.
        """

    @abstractmethod
    def close(
        self, plan: Plan, durations: Affine, steps: int, duration_ps: int, outcome: Outcome
    ) -> SpanMemory:
        """The memory of the `steps` iterations that were carried out, in duration_ps."""

    @abstractmethod
    def joined(self, group: SequenceGroup) -> None:
        """The group decodes from now on, and was never in a plan here."""

    @abstractmethod
    def forget(self, group: SequenceGroup) -> None:
        """The group has left: it holds nothing any more."""

    def max_steps(self, used: Usage) -> int:
        """The number of iterations that it can measure at once. The answer must not depend on
        output lengths, because it may call the policy.
        """
        return 1

    def repeated_reads(self, plan: Plan, used: Usage) -> int:
        """Work.decode_repeated of a plan that was opened, by the policy's own count."""
        if not (used.saved and (plan.decode_seqs or plan.drafts)):
            return 0
        batch, context = self.state.batch, plan.decode_context
        others: Collection[Sequence] = ()
        if plan.swapped_in or plan.drafts:
            batch, others = decoding(plan, batch)
            context += sum([draft.context for draft in plan.drafts])
        repeated = self.memory.repeated_reads(batch, others)
        if type(repeated) is not int:
            plain_int(self.policy, "repeated_reads()", repeated)
        if not 0 <= repeated <= context:
            expected = f"repeated_reads() is from 0 to {context}, what decodes read"
            raise wrong_answer(self.policy, repeated, expected)
        return repeated

    def unused(self, group: SequenceGroup) -> int:
        """Slots in a group's tables that will never be used; those of a block that several still
        share count once. Drafts use theirs, even behind the last token.
        """
        final_len = self.outputs.requests[group.request_id].final_len
        pieces: set[tuple[int, int]] = set()
        for seq in group.resident:
            used_len = max(final_len, seq.num_slots)
            for _, extents, first, slots_per_token in self.memory.group_tables(seq):
                left = (used_len - plain_int(self.policy, "num_stored()", first)) * slots_per_token
                for start, length in self._whole(seq, extents) if slots_per_token else ():
                    if length > left:
                        pieces.add((start + left, length - left))
                    left = left - length if left > length else 0
        return sum(length for _, length in pieces)

    def copies(self, group: SequenceGroup) -> int:
        """Slots that the prompt of a group would take on top if each of its sequences had one
        already.
        """
        unforked = len(group.sequences) - len(group.resident)
        first = group.sequences[0]
        return (
            unforked * sum(length for _, length in self._whole(first, self.policy.table(first)))
            if unforked
            else 0
        )

    def _whole(self, seq: Sequence, extents: list[Any]) -> list[Any]:
        """The extents, of whole numbers; raises PlugInError for others."""
        if not set(map(type, chain.from_iterable(extents))) <= {int}:
            raise wrong_answer(self.policy, extents, f"the table of {seq} has whole numbers (int)")
        return extents


class PlainMeter(Meter):
    """Walks every table before every iteration: slow, obvious, right for any policy."""

    def open(self, plan: Plan, used: Usage) -> None:
        running = self.state.running
        internal, copies = (
            sum(map(count, running.values())) for count in (self.unused, self.copies)
        )
        self._first = SpanMemory(len(running), used, internal, copies)

    def repeated_reads(self, plan: Plan, used: Usage) -> int:
        """Repeated reads by the tables of all that decode."""
        decodes = plan.decode_seqs or plan.drafts
        batch, others = decoding(plan, self.state.batch) if decodes else (Batch(), [])
        return self.memory.reads_by_tables(batch, others)

    def joined(self, group: SequenceGroup) -> None:
        """See Meter; every table is walked all the same."""

    def forget(self, group: SequenceGroup) -> None:
        """See Meter; nothing is kept of a group."""

    def close(
        self, plan: Plan, durations: Affine, steps: int, duration_ps: int, outcome: Outcome
    ) -> SpanMemory:
        used, saved = self._first.used, self._first.used.saved + self._first.copies
        return self._first._replace(
            shared=(SharedSlots(used.held, saved, saved * duration_ps),) if saved else ()
        )
