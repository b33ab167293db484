"""The clauses; the numbers are used in messages and tests.

1 Refusals are atomic, for a group too: nothing that can be seen has changed. 2 They are stable:
refused again until something is released, truncated, moved out or published, has landed, or a grant
says ends_refusals. 3 NEVER means that it would not fit an empty pool, an empty pool never answers
LATER, nor does one that has given every slot back, and it fits exactly the requests that end within
max_seq_len(). 4 Conservation: allocated + cached + in transit + free = total and live <= held <=
allocated, as the tables show; all are zero after everything is released; no tier has more slots
than configured. 5 Tables are disjoint unless the policy forks or publishes, no slot is written
while shared, every sequence reads back its own tokens. 6 guaranteed_steps are granted for every k,
without ops, from slots that were free or cached, and external fragmentation does not change. 7
extend(batch, n), and advance(batch, n) within the guaranteed steps, equal n times extend(batch, 1),
growth included, block ids aside; with group_tables only the latter does, for a chunk keeps what its
first token reads. 8 A block is findable as soon as it is published, within the same plan, and again
after a move back; what was not computed never is. lookup() finds what the policy lists as cached,
and counters() of hits are sums over the admissions. 9 The same calls give the same answers and
tables. 10 check() passes after every call, and answers have the types of the API. 11 footprint(seq)
is the size of its table at every length. 12 What a transfer in the background reads or writes is
pinned until it has landed: no other call writes there, and what it brings is not found before. 13
While a sequence's version stays, its table changes at its end alone (left out: tables by KV group,
and of policies that drop tokens; they change in front too).
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import NamedTuple

from testbed.core.sequence import Sequence
from testbed.core.slots import (
    DEVICE,
    FOOTPRINTS,
    Extent,
    Fixed,
    Footprint,
    Grant,
    Granular,
    Growth,
    Move,
    NonSequenceSlots,
    Ops,
    Refusal,
    Usage,
    ceil_div,
    is_footprint,
    is_plain,
)
from testbed.memory.capabilities import Capabilities
from testbed.memory.protocols import ListsOtherSlots


class ClauseBroken(AssertionError):
    """A policy broke a clause of the contract."""

    def __init__(self, clause: int, message: str) -> None:
        super().__init__(f"clause {clause}: {message}")
        self.clause = clause
        self.calls: list[str] = []


def require(clause: int, condition: bool, message: str) -> None:
    """Raise ClauseBroken with the clause's number and the message unless the condition holds."""
    if not condition:
        raise ClauseBroken(clause, message)


def call_raised(what: str, error: Exception) -> ClauseBroken:
    """Clause 10, for a call that raised an error, which becomes the cause."""
    broken = ClauseBroken(10, f"{what} raised {type(error).__name__}: {error}")
    broken.__cause__ = error
    return broken


def broken_in(
    check: Callable[[], None], name: str, calls: Callable[[], list[str]]
) -> ClauseBroken | None:
    """The clause that a check finds broken, with the calls that break it; None if it finds none.

    name: of the calls, in case one raises an error.
    """
    try:
        check()
    except ClauseBroken as error:
        broken = error
    except Exception as error:
        broken = call_raised(name, error)
    else:
        return None
    broken.calls = calls()
    return broken


def check_answer(name: str, answer: object) -> None:
    """Clause 10, on what extend() or move() gives, or one grant of admit()."""
    if isinstance(answer, Refusal):
        return
    if not isinstance(answer, Grant):
        raise ClauseBroken(10, f"{name} answered {answer!r}, which is neither Grant nor Refusal")
    if not (type(answer.num_cached) is int and answer.num_cached >= 0):
        raise ClauseBroken(10, f"{name} says that {answer.num_cached!r} tokens are cached")
    check_ops(name, answer.ops)
    for growth in (answer.growth, answer.evicted):
        if not (isinstance(growth, Growth) and all(map(is_plain, growth))):
            whole = "which is no Growth of whole numbers (int)"
            raise ClauseBroken(10, f"{name} answered {growth!r}, {whole}")


def check_answers(name: str, answers: object, num_seqs: int) -> None:
    """Clause 10, on what admit() gives."""
    if isinstance(answers, Refusal):
        return
    if not (isinstance(answers, list) and len(answers) == num_seqs):
        each = "which is neither Refusal nor a list of a Grant for each"
        raise ClauseBroken(10, f"{name} answered {answers!r}, {each}")
    for grant in answers:
        if not isinstance(grant, Grant):
            raise ClauseBroken(10, f"{name} answered a list with {grant!r}, which is no Grant")
        check_answer(name, grant)


def check_ops(name: str, ops: object) -> None:
    """Clause 10, on what must physically happen."""
    if not isinstance(ops, Ops):
        raise ClauseBroken(10, f"{name} orders {ops!r}, which is no Ops")
    moves = (*ops.moves, *(transfer.move for transfer in ops.background))
    if not all(isinstance(move, Move) and move.source != move.target for move in moves):
        raise ClauseBroken(10, f"{name} orders moves {moves!r}")
    for source, target, copies in (*moves, Move(DEVICE, DEVICE, ops.copies)):
        for copy in copies:
            if not (is_plain(tuple(copy)) and min(copy) >= 0 and copy.length > 0):
                places = f"from {source} to {target}: {copy}"
                raise ClauseBroken(10, f"{name} orders {copy.length!r} slots {places}")


class State(NamedTuple):
    """All that a caller can see of a policy's memory."""

    usage: Usage
    other_slots: NonSequenceSlots | None
    counters: Mapping[str, float]
    tables: list[list[Extent]]


def state_of(memory: Capabilities, seqs: Seq[Sequence]) -> State:
    """The visible state, with the tables of these sequences."""
    policy = memory.policy
    return State(
        policy.usage(),
        memory.non_sequence_slots(),
        dict(policy.counters()),
        [policy.table(seq) for seq in seqs],
    )


def changed_in(before: State, after: State) -> str:
    """The difference between two states, in words."""
    parts = [
        f"usage().{name} from {was} to {now}"
        for name, was, now in zip(Usage._fields, before.usage, after.usage, strict=True)
        if was != now
    ]
    parts += [
        f"counters()[{name!r}] from {before.counters.get(name)} to {now}"
        for name, now in after.counters.items()
        if before.counters.get(name) != now
    ]
    if before.other_slots != after.other_slots:
        parts.append("non_sequence_slots()")
    if before.tables != after.tables:
        parts.append("the table of a sequence")
    return ", ".join(parts) or "what can be seen"


def check_usage(used: object, num_slots: int) -> None:
    """Clause 4, on the policy's own account, at any time; num_slots: those that it was given."""
    if not isinstance(used, Usage):
        raise ClauseBroken(10, f"usage() answered {used!r}")
    if not all(map(is_plain, used)):
        raise ClauseBroken(10, f"usage() answered {used!r}; its numbers are whole ones (int)")
    parts = used.allocated + used.cached + used.in_transit + used.free
    if parts != used.total or min(used) < 0:
        raise ClauseBroken(4, f"slots were lost or counted twice: {used}")
    if used.total > num_slots:
        raise ClauseBroken(4, f"usage() counts {used.total} slots; {num_slots} were given")
    if not used.live <= used.held <= used.allocated:
        raise ClauseBroken(4, f"live <= held <= allocated is violated: {used}")
    if used.largest_free > used.free + used.cached:
        raise ClauseBroken(4, f"largest_free is more than what is free: {used}")


def check_tables(
    memory: Capabilities, used: Usage, tables: list[list[Extent]], pinned: Collection[int]
) -> None:
    """Clauses 4 and 5: the tables lie in the pool, and are what the policy counts. `pinned` slots
    are a prefix's.
    """
    for start, length in itertools.chain(*tables):
        if type(start) is not int or type(length) is not int:
            whole = "are no whole numbers (int)"
            raise ClauseBroken(10, f"{length!r} slots from {start!r} on {whole}")
        if start < 0 or length < 0 or start + length > used.total:
            beyond = f"are beyond the pool of {used.total}"
            raise ClauseBroken(4, f"slots from {start} to {start + length} {beyond}")
    slots = [slots_of(table) for table in tables]
    taken = sum(map(len, slots)) + len(pinned)
    held = len(set(pinned).union(*slots))
    apart = memory.forks is not None or memory.publishes is not None or taken == held
    require(5, apart, "tables overlap though the policy does not share")
    require(4, used.held == held, f"usage() reports {used.held} held slots, the tables have {held}")
    reported = f"usage() reports {used.saved} slots saved by sharing, the tables {taken - held}"
    may_differ = (
        pinned and memory.swaps is not None
    )  # a group on the host may have kept the prefix here
    require(4, bool(may_differ) or used.saved == taken - held, reported)
    if memory.lists_other_slots is not None:
        _check_other_slots(memory.lists_other_slots, used, set[int]().union(*slots))


def _check_other_slots(policy: ListsOtherSlots, used: Usage, in_tables: set[int]) -> None:
    """Clause 4: the listed slots of no sequence are as many as counted, and in no table."""
    others, listed = policy.non_sequence_slots(), list[int]()
    counts = {
        "cached": used.cached,
        "rounding": used.allocated - used.held,
        "in_transit": used.in_transit,
    }
    for kind, count in counts.items():
        slots = slots_of(list(getattr(others, kind)))
        reported = f"usage() reports {count} {kind} slots, non_sequence_slots() lists {len(slots)}"
        require(4, len(slots) == count, reported)
        listed += slots
    apart = len(in_tables.union(listed)) == len(listed) + len(in_tables)
    require(4, apart, "non_sequence_slots() lists a slot twice, or one of a table")


def check_footprint(memory: Capabilities, seq: Sequence, table: list[Extent]) -> None:
    """Clause 11."""
    if memory.predicts is None:
        return
    footprint: object = memory.predicts.footprint(seq)
    if not is_footprint(footprint):
        kinds = "which is no Fixed, Granular or Stepped of whole numbers (int)"
        raise ClauseBroken(10, f"footprint() is {footprint!r}, {kinds}")
    assert isinstance(footprint, FOOTPRINTS)
    claimed, held = slots_at(footprint, seq.num_slots), num_slots_of(table)
    if memory.layered is not None:
        tables = memory.layered.group_tables(seq)
        held = sum(num_slots_of(group.extents) for group in tables if group.slots_per_token)
    if held > claimed or (held < claimed and memory.layered is None):
        gives = f"{footprint} gives {claimed} slots for {seq.num_slots} tokens"
        raise ClauseBroken(11, f"{gives}, the table of {seq} has {held}")


def slots_at(footprint: Footprint, num_tokens: int) -> int:
    if isinstance(footprint, Fixed):
        return footprint.slots
    if isinstance(footprint, Granular):
        return ceil_div(num_tokens, footprint.size) * footprint.size * footprint.slots_per_token
    return next((slots for tokens, slots in footprint.steps if num_tokens <= tokens), 0)


def num_slots_of(table: Iterable[Extent]) -> int:
    return sum(map(attrgetter("length"), table))


def slots_of(table: Iterable[Extent]) -> list[int]:
    parts = (range(start, start + length) for start, length in table)
    return list(itertools.chain.from_iterable(parts))
