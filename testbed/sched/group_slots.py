"""Calls of a group to the memory policy; the counts of its sequences follow the answers.

These functions know no queue: `SchedulerState` decides when to ask, and what an answer changes.
"""

from typing import Any

from testbed.core.sequence import Item, Sequence, SequenceGroup, batch_of, disband, passing_batch
from testbed.core.slots import NO_OPS, Answer, Answers, CacheHit, Grant, Refusal, record
from testbed.memory.capabilities import Capabilities
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import one_answer, wrong_answer


def sequences_to_admit(group: SequenceGroup, *, policy_forks: bool) -> list[Sequence]:
    """The sequences for which a waiting group needs slots first.

    A policy that forks gives slots to the first sequence, which is forked when its prompt is
    computed; one that does not gives slots to every sequence. Sequences of a preempted group differ
    from each other, and all need slots.
    """
    has_output = group.generated_offset > 0  # in no batch
    return group.sequences[:1] if policy_forks and not has_output else list(group.sequences)


def request_first_slots(
    memory: Capabilities, seqs: list[Sequence], prefill_len: int, num_tokens: int, hit: CacheHit
) -> Answers:
    """Ask the policy for slots for the first num_tokens of the prefill_len tokens of each sequence,
    all or none; `hit` is what `lookup` found of them.

    Raises:
        PlugInError: the answer is neither a refusal nor a valid grant for each sequence.
    """
    answers: Any = memory.admit(seqs, num_tokens, hit)
    if isinstance(answers, Refusal):
        return answers
    return check_grants(memory, seqs, prefill_len, answers)


def check_grants(
    memory: Capabilities, seqs: list[Sequence], prefill_len: int, answers: Any
) -> list[Grant]:
    """The answers to an admission that was not refused.

    Raises:
        PlugInError: they are no list of a valid grant for each sequence.
    """
    if not isinstance(answers, list) or len(answers) != len(seqs):
        expected = "admit() gives a Refusal, or a list of a Grant for each sequence"
        raise wrong_answer(memory.policy, answers, expected)
    for grant in answers:
        cached = grant.num_cached if type(grant) is Grant else None
        if type(cached) is not int or not 0 <= cached <= prefill_len:
            expected = f"each of {seqs} has {prefill_len} tokens that could be cached"
            raise wrong_answer(memory.policy, grant, expected)
    return answers


def begin_prefill(
    group: SequenceGroup,
    seqs: list[Sequence],
    grants: list[Grant],
    num_tokens: int,
    prefill_len: int,
) -> None:
    """These sequences have slots for num_tokens tokens of the group's prefill_len: list what the
    group has to compute.

    If a group without output has slots for several sequences, the first is computed and the others
    are filled by a copy of its prompt.
    """
    todo: list[Item] = []
    has_output = prefill_len > group.request.prompt_len
    if group.num_cached < 0 and not has_output:
        group.num_cached = grants[0].num_cached
    for seq, grant in zip(seqs, grants, strict=True):
        cached = grant.num_cached
        seq.set_counts(num_slots=max(num_tokens, cached), num_stored=cached)
        if has_output or not todo:
            # The last token is computed even if it is cached: it yields the next output token.
            past = min(cached, prefill_len - 1)
            todo.append(record(Item, (seq, prefill_len - past, past)))
    group.todo, group.resident = todo, seqs


def extend_to(policy: MemoryPolicy, seqs: list[Sequence], num_tokens: int) -> Answer:
    """Ask for slots for num_tokens tokens of each of these sequences, which have one length, fewer
    slots than that, and are in no batch.
    """
    missing = num_tokens - seqs[0].slots_offset
    batch = batch_of(seqs[0]) if len(seqs) == 1 else passing_batch(seqs)
    answer = policy.extend(batch, missing)
    if isinstance(answer, Grant):
        batch.extended += missing
        if answer.ops is not NO_OPS:
            batch.changes += 1
    else:
        one_answer(policy, answer)
    disband(batch)
    return answer


def release_slots(policy: MemoryPolicy, group: SequenceGroup) -> None:
    """Give back all slots of the group."""
    for seq in group.resident:
        policy.release(seq)
    forget_slots(group)


def forget_slots(group: SequenceGroup) -> None:
    """The group has no slots any more."""
    for seq in group.resident:
        seq.set_counts(num_slots=0, num_stored=0)
    group.resident = []
