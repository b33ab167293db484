"""Groups swap out to the host whole, and swap in before a waiting group is admitted (section 4.5),
unless that one has the smaller rank.
"""

from testbed.core.sequence import RUNNING, SWAPPED, SequenceGroup
from testbed.core.slots import DEVICE, HOST, Refusal
from testbed.sched.orders import put_in_order
from testbed.sched.plan import Plan, one_answer
from testbed.sched.state import SchedulerState


def precedes_admission(state: SchedulerState) -> bool:
    """True if a swapped group comes back before the first waiting one is admitted."""
    if not state.swapped:
        return False
    if state.ranking.keeps_arrival or not state.waiting:
        return True
    return state.swapped[0].rank < state.waiting[0].rank


def swap_in(state: SchedulerState, plan: Plan) -> None:
    """Swap groups in, the earliest first, as far as they fit; none right after a preemption.

    They step with the batch at once; a group without a slot for its next token only joins.
    """
    while not plan.preempted and not state.swap_in_refused and precedes_admission(state):
        group = state.swapped[0]
        answer = one_answer(state.policy, state.memory.move(group.sequences, DEVICE))
        if isinstance(answer, Refusal):
            if state.free_for_waiting():
                continue
            state.swap_in_refused = True
            return
        state.swapped.popleft()
        state.add_running(group, RUNNING)
        state.order(answer.ops, plan)
        _return(state, group, plan)


def _return(state: SchedulerState, group: SequenceGroup, plan: Plan) -> None:
    """A group that was moved to the device joins the plan, with a step if it gets the slots."""
    plan.swapped_in.append(group)
    for seq in group.sequences:
        state.publish(seq, seq.num_stored)
    if state.ensure_slots(group.sequences, group.sequences[0].num_slots + 1, plan):
        first = group.sequences[0]
        read = state.memory.num_stored(first.prompt_len, first.num_slots)
        plan.decode_seqs += len(group.sequences)
        plan.decode_context += len(group.sequences) * read
        plan.decode_max_context = max(plan.decode_max_context, read)


def swap_out(state: SchedulerState, group: SequenceGroup, plan: Plan) -> bool:
    """Move all sequences of a running group to the host; False if the host pool is full."""
    answer = one_answer(state.policy, state.memory.move(group.sequences, HOST))
    if isinstance(answer, Refusal):
        return False
    state.order(answer.ops, plan)
    state.remove_running(group, SWAPPED)
    group.num_swaps += 1
    state.swapped.appendleft(group)
    if not state.ranking.keeps_arrival:
        put_in_order(state.swapped)
    return True
