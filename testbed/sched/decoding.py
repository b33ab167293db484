"""The next step of those that decode: room for it, who gives way to it, and who comes back to it (section 4.5)."""

from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import DEVICE, NO_OPS, Grant, Refusal
from testbed.sched.asking import one_answer, wrong_answer
from testbed.sched.plan import Plan
from testbed.sched.preemption import Recovery
from testbed.sched.residents import Residents


def decode(residents: Residents, plan: Plan) -> None:
    """Extend the batch by one step, preempting until it fits."""
    batch, policy = residents.batch, residents.policy
    while num_seqs := len(batch.sequences):
        answer = policy.extend(batch, 1)
        if isinstance(answer, Grant):
            batch.extend(1)
            plan.decode_seqs = num_seqs
            plan.decode_context, plan.decode_longest = batch.context, batch.longest
            if policy.drops_tokens:
                kept = [policy.stored(seq.room) for seq in batch]
                plan.decode_context, plan.decode_longest = sum(kept), max(kept)
            if answer.ops is not NO_OPS:
                residents.order(answer.ops, plan)
            return
        one_answer(policy, answer)
        preempt(residents, plan)


def preempt(residents: Residents, plan: Plan) -> None:
    """Take room back from the rule's victim, or from groups that have ended."""
    if residents.ended and residents.settle_early(plan):
        return
    running, rule = residents.running, residents.preemption
    if residents.ended:
        running = {key: group for key, group in running.items() if group not in residents.ended}
    group = rule.victim(running, residents.batch)
    if not isinstance(group, SequenceGroup) or residents.running.get(group.request.request_id) is not group:
        raise wrong_answer(rule, group, "victim() gives a group that is resident")
    take_back(residents, group, plan)


def take_back(residents: Residents, group: SequenceGroup, plan: Plan) -> None:
    """Preempt this group."""
    swaps = False
    plan.preempted.append(group)
    if group.batch is not None:
        residents.leave(group)
        recovery = residents.preemption.recovery(group)
        if not isinstance(recovery, Recovery):
            raise wrong_answer(residents.preemption, recovery, "recovery() gives a Recovery")
        swaps = recovery is Recovery.SWAP and residents.policy.moves_tiers
    if not (swaps and residents.swap_out(group, plan)):
        residents.lose(group)
    residents.room_freed()


def resume(residents: Residents, plan: Plan) -> None:
    """Bring swapped groups back, the earliest first, as far as there is room; none right after a preemption.

    They step with the batch at once; without room for its next token a group only joins.
    """
    policy = residents.policy
    while residents.swapped and not plan.took_room and not residents.resume_refused:
        group = residents.swapped[0]
        answer = one_answer(policy, policy.move(group.sequences, DEVICE))
        if isinstance(answer, Refusal):
            residents.resume_refused = True
            return
        residents.swapped.popleft()
        residents.arrive(group, SequenceStatus.RUNNING)
        residents.order(answer.ops, plan)
        plan.resumed.append(group)
        for seq in group.sequences:
            policy.computed(seq, seq.stored)
        if policy.caches_prefixes:
            residents.room_freed()
        if residents.make_room(group.sequences, group.sequences[0].room + 1, plan):
            read = policy.stored(group.sequences[0].room)
            plan.decode_seqs += len(group.sequences)
            plan.decode_context += len(group.sequences) * read
            plan.decode_longest = max(plan.decode_longest, read)
