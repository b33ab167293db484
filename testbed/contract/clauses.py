"""The clauses, one function each; the numbers are used in messages and tests.

1 Refusals are atomic: nothing has changed. 2 They are stable: refused again until something is released, moved out or
published. 3 NEVER means that it would not fit an empty pool, and an empty pool never says LATER. 4 Conservation:
allocated + cached + free = total, live <= held <= allocated, all zero after everything is released. 5 Tables are
disjoint unless sharing, no slot is written while shared, every sequence reads back its own tokens. 6 The horizon holds
for every k. 7 extend(seqs, n) equals n times extend(seqs, 1), block ids aside. 8 A full block becomes findable at the
start of the next call after its tokens were computed. 9 The same calls give the same answers and tables. 10 check()
holds after every call, and true output lengths are read only by a policy that declares it.
"""

import copy
import itertools
from collections.abc import Sequence as Seq

from testbed.core.batch import Batch
from testbed.core.sequence import Sequence
from testbed.core.slots import Answer, Grant, Growth, Refusal, Usage
from testbed.memory.policy import MemoryPolicy


class ClauseBroken(AssertionError):
    """A policy broke a clause of the contract."""

    def __init__(self, clause: int, message: str) -> None:
        super().__init__(f"clause {clause}: {message}")
        self.clause = clause
        self.calls: list[str] = []


def require(clause: int, holds: bool, message: str) -> None:
    """Raise ClauseBroken unless it holds."""
    if not holds:
        raise ClauseBroken(clause, message)


def state_of(policy: MemoryPolicy, seqs: Seq[Sequence]) -> object:
    """Everything of a policy's state that can be seen from outside."""
    return policy.usage(), [policy.table(seq) for seq in seqs]


def check_conservation(used: Usage) -> None:
    """Clause 4, at any time."""
    require(4, used.allocated + used.cached + used.free == used.total, f"slots were lost or counted twice: {used}")
    require(4, 0 <= used.live <= used.held <= used.allocated, f"live <= held <= allocated does not hold: {used}")
    require(4, 0 <= used.largest_free <= used.free + used.cached, f"largest_free is more than what is free: {used}")


def check_all_returned(policy: MemoryPolicy, pinned: int) -> None:
    """Clause 4, after everything is released; `pinned` slots belong to registered prefixes."""
    used = policy.usage()
    require(4, used.held == pinned, f"{used.held} slots are held though everything is released")
    require(4, used.free + used.cached + pinned >= used.total, f"not everything came back: {used}")


def check_refusal(policy: MemoryPolicy, before: object, seqs: Seq[Sequence], answer: object) -> None:
    """Clause 1."""
    if isinstance(answer, Refusal):
        require(1, state_of(policy, seqs) == before, "a refusal changed the policy's state")


def check_never(call: str, answer: Refusal, fresh: object) -> None:
    """Clause 3; `fresh` is what a policy with an empty pool answers to the same call."""
    if answer is Refusal.NEVER:
        require(3, fresh is Refusal.NEVER, f"{call} said NEVER, but an empty pool has room")
    else:
        require(3, not isinstance(fresh, Refusal), f"{call} says LATER, but an empty pool says no too")


def check_disjoint(policy: MemoryPolicy, seqs: Seq[Sequence]) -> None:
    """Clause 5 for policies that do not share."""
    extents = sorted(extent for seq in seqs for extent in policy.table(seq))
    for left, right in itertools.pairwise(extents):
        require(5, left.start + left.length <= right.start, f"{left} and {right} overlap")


def check_horizon(policy: MemoryPolicy, batch: Batch, limit: int) -> int:
    """Clause 6; returns the horizon."""
    horizon = policy.horizon(batch, limit)
    require(6, 0 <= horizon <= limit, f"horizon(batch, {limit}) is {horizon}")
    for steps in {1, horizon // 2, horizon} - {0} if horizon else ():
        twin, members = copy.deepcopy((policy, batch))
        answer = twin.extend(members, steps)
        require(6, isinstance(answer, Grant), f"promised {horizon} steps, refused {steps}")
        require(6, isinstance(answer, Grant) and not answer.ops, f"promised {horizon} steps, but {steps} need ops")
    return horizon


def check_steps(twin: MemoryPolicy, members: Batch, steps: int, answer: Answer, after: Usage) -> None:
    """Clause 7: one policy has answered extend(batch, steps) and then uses `after`; its `twin` goes step by step."""
    held, events = twin.usage().held, []
    for step in range(steps):
        if isinstance(twin.extend(members, 1), Refusal):
            require(7, isinstance(answer, Refusal), f"{steps} steps at once fit, but step {step + 1} alone does not")
            return
        grown = twin.usage().held - held
        events.append((grown, grown * step, grown * step * step))
        held += grown
    require(7, isinstance(answer, Grant), f"{steps} steps fit one by one, but not at once")
    require(7, twin.usage() == after, f"{after} after {steps} steps at once, {twin.usage()} one by one")
    if isinstance(answer, Grant) and type(twin).waste is not MemoryPolicy.waste:
        growth = Growth(*(sum(column) for column in zip(*events, strict=True)))
        require(7, answer.growth == growth, f"{answer.growth} for {steps} steps at once, {growth} one by one")
