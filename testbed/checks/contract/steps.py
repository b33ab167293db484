"""Clauses 6 and 7: steps that are guaranteed are granted, and several at once equal the same steps
one by one.
"""

import copy
from collections.abc import Iterable, Sequence

from testbed.checks.contract.clauses import check_answer, require
from testbed.core.sequence import Batch
from testbed.core.slots import Answer, Grant, Growth, Refusal, Usage, growth_of
from testbed.memory.capabilities import Capabilities


def twin_of(
    memory: Capabilities, batch: Batch, shared: Iterable[object]
) -> tuple[Capabilities, Batch]:
    """Copies of both, which share these objects: what never changes, and what an oracle reads."""
    return copy.deepcopy((memory, batch), {id(item): item for item in shared})


def check_guaranteed_steps(
    memory: Capabilities, batch: Batch, shared: Sequence[object], max_len: int
) -> int:
    """Clause 6, on all promised steps and on half of them, up to max_len; returns how many are
    promised. shared: objects that the copies of the policy share, see twin_of.
    """
    guaranteed_steps: object = memory.guaranteed_steps(batch)
    require(
        6,
        type(guaranteed_steps) is int and guaranteed_steps >= 0,
        f"guaranteed_steps() is {guaranteed_steps!r}",
    )
    assert isinstance(guaranteed_steps, int)
    reached = min(guaranteed_steps, max_len)
    for steps in {reached // 2, reached} - {0}:
        twin, members = twin_of(memory, batch, shared)
        answer = twin.advance(members, steps)
        check_answer(f"advance(batch, {steps})", answer)
        check_promised(guaranteed_steps, steps, answer)
        members.extend(steps)
        if memory.layered is not None:
            check_steps(*twin_of(memory, batch, shared), steps, answer, twin.policy.usage())
        if steps == reached:
            check_taken(memory.policy.usage(), twin.policy.usage())
    return guaranteed_steps


def check_promised(guaranteed_steps: int, steps: int, answer: Answer) -> None:
    """Clause 6, on the answer to an extend by `steps`."""
    if steps <= guaranteed_steps:
        require(6, isinstance(answer, Grant), f"promised {guaranteed_steps} steps, refused {steps}")
        free = isinstance(answer, Grant) and not answer.ops
        require(6, free, f"promised {guaranteed_steps} steps, but {steps} need ops")


def check_taken(before: Usage, after: Usage) -> None:
    """Clause 6, on what promised steps may change."""
    taken = after.held - before.held
    explained = max(taken - before.free, 0) <= before.cached - after.cached <= taken
    require(
        6, explained, f"promised steps take slots that were free or cached; {before} became {after}"
    )
    first, last = (used.free + used.cached - used.largest_free for used in (before, after))
    require(
        6,
        first == last,
        f"promised steps changed the free slots that no sequence could get (free + cached - "
        f"largest_free) from {first} to {last}: promise fewer steps, or count as largest_free all "
        "that one sequence could get",
    )


def check_steps(
    twin: Capabilities, members: Batch, steps: int, answer: Answer, after: Usage
) -> None:
    """Clause 7: one policy has answered extend(batch, steps) and then uses `after`; its `twin` goes
    step by step.
    """
    policy, copied = twin.policy, 0
    used, taken, evicted = policy.usage(), list[tuple[int, int]](), list[tuple[int, int]]()
    for step in range(steps):
        step_answer = policy.extend(members, 1)
        check_answer("extend(batch, 1)", step_answer)
        if isinstance(step_answer, Refusal):
            require(
                7,
                isinstance(answer, Refusal),
                f"{steps} steps at once fit, but step {step + 1} alone does not",
            )
            return
        copied += copied_slots(step_answer)
        members.extend(1)
        before, used = used, policy.usage()
        taken.append((step, used.held - before.held))
        evicted.append((step, before.cached - used.cached))
    require(7, isinstance(answer, Grant), f"{steps} steps fit one by one, but not at once")
    require(7, used == after, f"{after} after {steps} steps at once, {used} one by one")
    assert isinstance(answer, Grant)
    same = copied_slots(answer) == copied
    require(
        7, same, f"{steps} steps copy {copied_slots(answer)} slots at once, {copied} one by one"
    )
    if twin.predicts is not None:
        written = (
            f" (a shared block was written: the {copied} slots of its copy count)" if copied else ""
        )
        check_growth(f"growth{written}", answer.growth, taken, steps)
        if not copied:  # only guaranteed steps are integrated, and these copy nothing
            check_growth("evicted", answer.evicted, evicted, steps)


def check_growth(name: str, claimed: Growth, events: list[tuple[int, int]], steps: int) -> None:
    """Clause 7, on when slots are taken or evicted; the meter integrates it."""
    separately = [(step, slots) for step, slots in events if slots]
    reported = f"{name} is {claimed} for {steps} steps at once; one by one they are {separately}"
    field = name.partition(" ")[0]
    way_out = f" (step, slots): give Grant({field}=growth_of({separately}))"
    require(7, claimed == growth_of(separately), reported + way_out)


def copied_slots(answer: Grant) -> int:
    return sum(copy.length for copy in answer.ops.copies)
