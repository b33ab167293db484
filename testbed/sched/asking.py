"""What a scheduler asks a policy: each question moves room and stored tokens by the answer, and takes no other one."""

from collections.abc import Iterable

from testbed.core.batch import Batch, disband, passing_batch
from testbed.core.errors import PlugInError
from testbed.core.sequence import Sequence
from testbed.core.slots import NO_OPS, Answer, Answers, Grant, Ops, Refusal
from testbed.memory.policy import MemoryPolicy

ANSWERS = (Grant, Refusal)


def room_for(policy: MemoryPolicy, seqs: list[Sequence], num_tokens: int, most: int) -> Answers:
    """First room for num_tokens tokens of each, of which at most `most` may be cached; all or none."""
    grants = policy.admit(seqs, num_tokens)
    if isinstance(grants, Refusal):
        return grants
    if not isinstance(grants, list) or len(grants) != len(seqs):
        raise wrong_answer(policy, grants, "admit() gives a Refusal, or a list of a Grant for each sequence")
    for seq, grant in zip(seqs, grants, strict=True):
        if not isinstance(grant, Grant) or not 0 <= grant.num_cached <= most:
            raise wrong_answer(policy, grant, f"{seq} has {most} tokens that could be cached")
        cached = seq.stored_offset = grant.num_cached  # at rest
        seq.room_offset = num_tokens if num_tokens > cached else cached
    return grants


def more_room(policy: MemoryPolicy, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
    """num_tokens more slots for sequences that are in no batch."""
    batch = passing_batch(seqs)
    answer = one_answer(policy, policy.extend(batch, num_tokens))
    if isinstance(answer, Grant):
        batch.extend(num_tokens)
    disband(batch)
    return answer


def promised_room(policy: MemoryPolicy, batch: Batch, steps: int) -> Grant:
    """So many steps more have happened, within the horizon that the policy has promised."""
    answer = policy.extend(batch, steps)
    if isinstance(answer, Grant) and (answer.ops is NO_OPS or not answer.ops):
        batch.extend(steps)
        return answer
    name = type(policy).__name__
    raise PlugInError(f"{name} promised {steps} more steps by horizon() and then answered {one_answer(policy, answer)}")


def forked(policy: MemoryPolicy, parent: Sequence, child: Sequence) -> Ops:
    """The child goes on with the parent's tokens; members of a batch have the same counts already."""
    ops = policy.fork(parent, child)
    if child.batch is None:
        child.stored = parent.stored
        if policy.shares:
            child.room = parent.room
    return ops


def one_answer(policy: MemoryPolicy, answer: Answer) -> Answer:
    """The answer, if it is one."""
    if not isinstance(answer, ANSWERS):
        raise wrong_answer(policy, answer, "it gives a Grant or a Refusal")
    return answer


def wrong_answer(plug_in: object, answer: object, right: str) -> PlugInError:
    """What to raise where a plug-in answers something that is none."""
    return PlugInError(f"{type(plug_in).__name__} answered {answer!r}; {right}")
