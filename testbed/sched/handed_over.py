"""Slots for a group whose prompt another engine computes: they are reserved, and filled when the
prompt has landed, or given back.
"""

from testbed.core.sequence import RUNNING, SequenceGroup
from testbed.core.slots import Answers, Refusal
from testbed.sched.group_slots import release_slots, request_first_slots
from testbed.sched.state import SchedulerState


def reserve(state: SchedulerState, group: SequenceGroup) -> Answers:
    """Ask for slots for the prompt of a group of one sequence; it is in `state.reserved` then."""
    seq, prefill_len = group.sequences[0], group.prefill_len
    hit = state.memory.lookup(seq)
    answers = request_first_slots(state.memory, [seq], prefill_len, prefill_len, hit)
    if isinstance(answers, Refusal):
        state.refused = group
        return answers
    seq.set_counts(num_slots=prefill_len, num_stored=answers[0].num_cached)
    group.resident = [seq]
    state.reserved[group] = None
    return answers


def land(state: SchedulerState, group: SequenceGroup) -> None:
    """The prompt of a group with reserved slots is there, and its first output token: the group
    decodes from now on.
    """
    del state.reserved[group]
    seq = group.sequences[0]
    seq.num_stored = group.prefill_len
    state.publish(seq, group.prefill_len)
    group.generate()
    state.add_running(group, RUNNING)
    state.join_batch(group)


def abandon(state: SchedulerState, group: SequenceGroup) -> None:
    """Give back the slots that were reserved for the group."""
    del state.reserved[group]
    release_slots(state.policy, group)
    state.memory_released()
