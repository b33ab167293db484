"""Clauses 6 and 7: what a policy promises of many steps at once, against the same steps one by one."""

import copy
from collections.abc import Iterable
from typing import TypeAlias

from testbed.contract.clauses import check_answer, overrides, require
from testbed.core.batch import Batch
from testbed.core.sequence import Sequence
from testbed.core.slots import Answer, Grant, Growth, Refusal, Usage, growth_of
from testbed.memory.policy import MemoryPolicy

Event: TypeAlias = tuple[int, int]


def twin_of(policy: MemoryPolicy, batch: Batch, seqs: Iterable[Sequence]) -> tuple[MemoryPolicy, Batch]:
    """Copies of both, which share the prompts of `seqs`."""
    contents = {id(seq.content): seq.content for seq in seqs}
    return copy.deepcopy((policy, batch), contents)


def check_horizon(policy: MemoryPolicy, batch: Batch, seqs: Iterable[Sequence], max_len: int) -> int:
    """Clause 6; returns the horizon."""
    horizon = policy.horizon(batch)
    require(6, type(horizon) is int and horizon >= 0, f"horizon(batch) is {horizon!r}")
    reached = min(horizon, max_len)
    for steps in {reached // 2, reached} - {0}:
        twin, members = twin_of(policy, batch, seqs)
        answer = twin.extend(members, steps)
        check_answer(f"extend(batch, {steps})", answer)
        check_promised(horizon, steps, answer)
        members.extend(steps)
        if steps == reached:
            check_taken(policy.usage(), twin.usage())
    return horizon


def check_promised(horizon: int, steps: int, answer: Answer) -> None:
    """Clause 6, on the answer to an extend by `steps`."""
    if steps <= horizon:
        require(6, isinstance(answer, Grant), f"promised {horizon} steps, refused {steps}")
        require(6, isinstance(answer, Grant) and not answer.ops, f"promised {horizon} steps, but {steps} need ops")


def check_taken(before: Usage, after: Usage) -> None:
    """Clause 6, on what promised steps may change."""
    evicted = max(after.held - before.held - before.free, 0)
    first = before.cached - after.cached == evicted
    require(6, first, f"promised steps take free slots first, then cached ones; {before} became {after}")
    scattered = [used.free + used.cached - used.largest_free for used in (before, after)]
    require(6, scattered[0] == scattered[1], f"promised steps scattered the free slots: {before} became {after}")


def check_steps(twin: MemoryPolicy, members: Batch, steps: int, answer: Answer, after: Usage) -> None:
    """Clause 7: one policy has answered extend(batch, steps) and then uses `after`; its `twin` goes step by step."""
    used, copied, taken, evicted = twin.usage(), 0, list[Event](), list[Event]()
    for step in range(steps):
        one = twin.extend(members, 1)
        check_answer("extend(batch, 1)", one)
        if isinstance(one, Refusal):
            require(7, isinstance(answer, Refusal), f"{steps} steps at once fit, but step {step + 1} alone does not")
            return
        copied += copied_slots(one)
        members.extend(1)
        before, used = used, twin.usage()
        taken.append((step, used.held - before.held))
        evicted.append((step, before.cached - used.cached))
    require(7, isinstance(answer, Grant), f"{steps} steps fit one by one, but not at once")
    require(7, used == after, f"{after} after {steps} steps at once, {used} one by one")
    assert isinstance(answer, Grant)
    same = copied_slots(answer) == copied
    require(7, same, f"{steps} steps copy {copied_slots(answer)} slots at once, {copied} one by one")
    if overrides(twin, "footprint"):
        check_growth("growth", answer.growth, taken, steps)
        if not copied:  # only steps within a horizon are integrated, and these copy nothing
            check_growth("evicted", answer.evicted, evicted, steps)


def check_growth(name: str, said: Growth, events: list[Event], steps: int) -> None:
    """Clause 7, on when slots are taken or evicted; the meter integrates it."""
    known = [(step, slots) for step, slots in events if slots]
    require(7, said == growth_of(known), f"{name} is {said} for {steps} steps at once; one by one they are {known}")


def copied_slots(answer: Grant) -> int:
    """Slots that a grant has copied on the device."""
    return sum(copy.length for copy in answer.ops.copies)
