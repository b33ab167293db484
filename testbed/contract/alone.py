"""Clause 3: what an empty pool holds, against what `longest` says of it."""

from testbed.contract.clauses import check_answer, check_answers, require
from testbed.core.batch import passing_batch
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import Refusal
from testbed.memory.policy import UNBOUNDED_LEN, MemoryPolicy


def check_longest(policy: MemoryPolicy, request: Incoming, final_len: int) -> None:
    """The empty policy can serve the request to its end exactly if `longest` says so."""
    longest = policy.longest(request.prompt_len, request.num_seqs)
    require(3, type(longest) is int, f"longest() is {longest!r}")
    if longest >= UNBOUNDED_LEN:
        return
    served = is_served_alone(policy, request, final_len)
    case = f"{request.num_seqs} x {final_len} tokens, {request.prompt_len} of them prompt,"
    said = f"longest({request.prompt_len}, {request.num_seqs}) is {longest}"
    require(3, served or final_len > longest, f"{case} do not fit an empty pool, but {said}")
    require(3, not served or final_len <= longest, f"{case} fit an empty pool, but {said}")


def is_served_alone(policy: MemoryPolicy, request: Incoming, final_len: int) -> bool:
    """Whether the request can be admitted, forked, and extended to its end."""
    seqs = [Sequence(i, request) for i in range(request.num_seqs)]
    admitted = seqs[:1] if policy.shares else seqs
    answers = policy.admit(admitted, request.prompt_len)
    check_answers("admit() of an empty pool", answers, len(admitted))
    if isinstance(answers, Refusal):
        return False
    for seq in admitted:
        seq.room = request.prompt_len
    policy.computed(seqs[0], request.prompt_len)
    seqs[0].stored = request.prompt_len
    for child in seqs[1:]:
        policy.fork(seqs[0], child)
        child.room = child.stored = request.prompt_len
    answer = policy.extend(passing_batch(seqs), final_len - request.prompt_len)
    check_answer("extend() in an empty pool", answer)
    return not isinstance(answer, Refusal)
