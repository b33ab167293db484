"""What a scheduler asks a policy beside admission: room and stored tokens move by the answer, and by no other one."""

from collections.abc import Iterable

from testbed.core.batch import disband, passing_batch
from testbed.core.errors import PlugInError
from testbed.core.sequence import Sequence
from testbed.core.slots import Answer, Grant, Ops, Refusal
from testbed.memory.policy import MemoryPolicy

ANSWERS = (Grant, Refusal)


def more_room(policy: MemoryPolicy, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
    """num_tokens more slots for sequences that are in no batch."""
    batch = passing_batch(seqs)
    answer = one_answer(policy, policy.extend(batch, num_tokens))
    if isinstance(answer, Grant):
        batch.extend(num_tokens)
    disband(batch)
    return answer


def forked(policy: MemoryPolicy, parent: Sequence, child: Sequence) -> Ops:
    """The child goes on with the parent's tokens; members of a batch have the same counts already."""
    ops = policy.fork(parent, child)
    if child.batch is None:
        child.stored = parent.stored
        if policy.shares:
            child.room = parent.room
    return ops


def one_answer(policy: MemoryPolicy, answer: object) -> Answer:
    """The answer, if it is one."""
    if not isinstance(answer, ANSWERS):
        raise wrong_answer(policy, answer, "it gives a Grant or a Refusal")
    return answer


def wrong_answer(plug_in: object, answer: object, right: str) -> PlugInError:
    """What to raise where a plug-in answers something that is none."""
    return PlugInError(f"{type(plug_in).__name__} answered {answer!r}; {right}")
