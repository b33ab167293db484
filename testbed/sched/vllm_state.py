"""The groups of vLLM's scheduler and their memory: as they will be when a plan in flight has run,
and of groups that decode one by one.
"""

from testbed.core.sequence import (
    CANCELLED,
    FINISHED,
    RUNNING,
    SWAPPED,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from testbed.memory.policy import MemoryPolicy
from testbed.sched.state import SchedulerState


class VllmState(SchedulerState):
    """The state while a plan is in flight, as it will be when that plan is carried out.

    Attributes:
        prefilled: the groups whose prompt the plan in flight completes; None if no plan is in
            flight.
        steps_in_turn: groups that decode are in no batch, because they step one by one.
        findable: of such groups, by request, the tokens that cache entries may cover, if they are
            fewer than the sequence has stored.
        num_behind: tokens that must be known behind a block before it is hashed.
        departed: sequences that have left for good since the last plan, and their stored tokens;
            empty unless the policy offloads.
        hashes_results: a decoded block is findable when its results are in; what a finished
            sequence has stored behind its output's last token but one is void then.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        super().__init__(policy)
        self.prefilled: list[SequenceGroup] | None = None
        self.steps_in_turn = False
        self.findable: dict[int, int] = {}
        self.num_behind = 0
        self.departed: list[tuple[Sequence, int]] = []
        self.hashes_results = False

    def join_batch(self, group: SequenceGroup) -> None:
        """The group decodes from the next step on, with the batch unless it steps in turn."""
        if self.steps_in_turn:
            group.status = RUNNING
        else:
            super().join_batch(group)

    def before_preemption(self, group: SequenceGroup) -> None:
        """The token that a decode computes in flight is unknown, so the block that it fills is not
        published.
        """
        if self.steps_in_turn:
            self.hide_unknown(group)
        elif self.prefilled is not None and not group.todo and group not in self.prefilled:
            for seq in group.sequences:
                seq.num_stored -= 1

    def hide_unknown(self, group: SequenceGroup) -> None:
        """The group leaves its slots: what is not hashed yet stays hidden from lookups."""
        seq = group.sequences[0]
        findable = self.findable.pop(group.request_id, seq.num_stored)
        if self.num_behind:
            in_flight = self.prefilled is not None and group in self.prefilled
            findable = min(findable, group.prefill_len - in_flight - self.num_behind)
        seq.num_stored = findable

    def remove(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group leaves for good; see SchedulerState."""
        if self.steps_in_turn:
            self.findable.pop(group.request_id, None)
            seq = group.sequences[0]
            if self.hashes_results and status is FINISHED and seq.num_slots:
                seq.num_stored = group.prefill_len - 1
        super().remove(group, status)

    def _release_slots(self, group: SequenceGroup) -> None:
        """Also before its slots come back: what a group has stored that leaves for good; nothing
        counts of a group of several sequences.
        """
        seq = group.sequences[0]
        is_over = group.status in (FINISHED, CANCELLED)
        if is_over and self.memory.offloads is not None:
            has_ended = group.status is FINISHED
            stored = max(seq.prompt_len, group.prefill_len - 1) if has_ended else seq.num_stored
            is_alone = len(group.sequences) == 1
            self.departed += [(seq, stored * is_alone) for seq in group.sequences]
        super()._release_slots(group)

    def finish_preempted(self, group: SequenceGroup) -> None:
        """The group was preempted in the plan ahead, and the results say that it had ended: that
        preemption does not count.
        """
        swapped = group.status is SWAPPED
        group.num_swaps -= swapped
        group.num_recomputes -= not swapped
        self.remove(group, FINISHED)

    def return_rejected(self, seq: Sequence) -> None:
        """The slots behind the stored tokens come back."""
        truncates, num_tokens = self.memory.truncates, seq.num_slots - seq.num_stored
        if truncates is None or num_tokens <= 0:
            return
        truncates.truncate(seq, num_tokens)
        seq.set_counts(num_slots=seq.num_stored, num_stored=seq.num_stored)
        self.memory_released()
