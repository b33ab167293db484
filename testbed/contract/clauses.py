"""The clauses; the numbers are used in messages and tests.

1 Refusals are atomic, for a group too: nothing that can be seen has changed. 2 They are stable: refused again until
something is released, moved out or published. 3 NEVER means that it would not fit an empty pool, an empty pool never
says LATER, and holds exactly the requests that end within longest(). 4 Conservation: allocated + cached + free =
total, live <= held <= allocated, all as the tables say; all zero after everything is released. 5 Tables are disjoint
unless sharing, no slot is written while shared, every sequence reads back its own tokens. 6 The horizon holds for
every k, without ops, takes free slots first, then cached ones, and leaves what is scattered as it is. 7 extend(batch,
n) equals n times extend(batch, 1), growth included, block ids aside. 8 A block is findable as soon as `computed` has
said so, within the same plan, and again after a move back; what was not computed never is. 9 The same calls give the
same answers and tables. 10 check() holds after every call, calls answer what the API says, traits are kept, and true
lengths are read only by a policy that declares it. 11 footprint(seq) is the size of its table at every length.
"""

import itertools
from collections.abc import Collection
from collections.abc import Sequence as Seq

from testbed.contract.memory import slots_of
from testbed.core.sequence import Sequence
from testbed.core.slots import Extent, Fixed, Footprint, Grant, Granular, Growth, Move, Ops, Refusal, Usage, ceil_div
from testbed.memory.policy import MemoryPolicy

TRAITS = {
    "shares": "fork",
    "caches_prefixes": "computed",
    "moves_tiers": "move",
    "drops_tokens": "stored",
}


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


def overrides(policy: MemoryPolicy, method: str) -> bool:
    """Whether the policy has a method of its own where the API has a default."""
    return getattr(type(policy), method) is not getattr(MemoryPolicy, method)


def check_traits(policy: MemoryPolicy) -> None:
    """Clause 10: whoever declares a trait has the method that it is about."""
    for trait, method in TRAITS.items():
        kept = not getattr(policy, trait) or overrides(policy, method)
        require(10, kept, f"declares {trait} = True, but has no {method}() of its own")


def check_answer(name: str, answer: object) -> None:
    """Clause 10, on what extend() or move() gives, or one grant of admit()."""
    known = isinstance(answer, Grant | Refusal)
    require(10, known, f"{name} answered {answer!r}, which is neither Grant nor Refusal")
    if isinstance(answer, Grant):
        cached = type(answer.num_cached) is int and answer.num_cached >= 0
        require(10, cached, f"{name} says that {answer.num_cached!r} tokens are cached")
        check_ops(name, answer.ops)
        for growth in (answer.growth, answer.evicted):
            require(10, isinstance(growth, Growth), f"{name} answered {growth!r}, which is no Growth")


def check_answers(name: str, answers: object, num_seqs: int) -> None:
    """Clause 10, on what admit() gives."""
    known = isinstance(answers, Refusal) or (isinstance(answers, list) and len(answers) == num_seqs)
    require(10, known, f"{name} answered {answers!r}, which is neither Refusal nor a list of a Grant for each")
    for grant in answers if isinstance(answers, list) else []:
        require(10, isinstance(grant, Grant), f"{name} answered a list with {grant!r}, which is no Grant")
        check_answer(name, grant)


def check_ops(name: str, ops: object) -> None:
    """Clause 10, on what must physically happen."""
    require(10, isinstance(ops, Ops), f"{name} orders {ops!r}, which is no Ops")
    if isinstance(ops, Ops):
        known = all(isinstance(move, Move) and move.source != move.target for move in ops.moves)
        require(10, known, f"{name} orders moves {ops.moves!r}")


def state_of(policy: MemoryPolicy, seqs: Seq[Sequence]) -> object:
    """Everything of a policy's state that can be seen from outside."""
    return policy.usage(), policy.unowned(), dict(policy.counters()), [policy.table(seq) for seq in seqs]


def check_usage(used: object) -> None:
    """Clause 4, on the policy's own account, at any time."""
    require(10, isinstance(used, Usage), f"usage() answered {used!r}")
    assert isinstance(used, Usage)
    adds_up = used.allocated + used.cached + used.free == used.total and min(used) >= 0
    require(4, adds_up, f"slots were lost or counted twice: {used}")
    require(4, used.live <= used.held <= used.allocated, f"live <= held <= allocated does not hold: {used}")
    require(4, used.largest_free <= used.free + used.cached, f"largest_free is more than what is free: {used}")


def check_tables(policy: MemoryPolicy, used: Usage, tables: list[list[Extent]], pinned: Collection[int]) -> None:
    """Clauses 4 and 5: the tables lie in the pool, and are what the policy counts. `pinned` slots are a prefix's."""
    for start, length in itertools.chain(*tables):
        inside = min(start, length) >= 0 and start + length <= used.total
        require(4, inside, f"slots from {start} to {start + length} are beyond the pool of {used.total}")
    slots = [slots_of(table) for table in tables]
    taken = sum(map(len, slots)) + len(pinned)
    held = len(set(pinned).union(*slots))
    require(5, policy.shares or taken == held, "tables overlap though the policy does not share")
    require(4, used.held == held, f"usage() says {used.held} held slots, the tables have {held}")
    if overrides(policy, "unowned"):
        cached, rounding = (slots_of(list(extents)) for extents in policy.unowned()[1:])
        require(
            4, len(cached) == used.cached, f"usage() says {used.cached} cached slots, unowned() lists {len(cached)}"
        )
        known = len(rounding) == used.allocated - used.held
        require(4, known, f"{used.allocated - used.held} slots are rounding, unowned() lists {len(rounding)}")
        apart = len(set(cached + rounding).union(*slots)) == len(cached) + len(rounding) + len(set().union(*slots))
        require(4, apart, "a slot of a table is cached or rounding, says unowned()")


def check_all_returned(used: Usage, pinned: int) -> None:
    """Clause 4, after everything is released; `pinned` slots belong to registered prefixes."""
    require(4, used.held == used.allocated == pinned, f"{used} though everything is released")


def check_footprint(policy: MemoryPolicy, seq: Sequence, table: list[Extent]) -> None:
    """Clause 11."""
    footprint = policy.footprint(seq)
    if footprint is None:
        require(11, not overrides(policy, "footprint"), f"footprint() says nothing of {seq}, though it does of others")
        return
    held = sum(extent.length for extent in table)
    said = slots_at(footprint, seq.room)
    require(11, said == held, f"{footprint} gives {said} slots for {seq.room} tokens, the table of {seq} has {held}")


def slots_at(footprint: Footprint, num_tokens: int) -> int:
    """The slots of a footprint at so many tokens."""
    if isinstance(footprint, Fixed):
        return footprint.slots
    if isinstance(footprint, Granular):
        return ceil_div(num_tokens, footprint.size) * footprint.size
    return next((slots for tokens, slots in footprint.steps if num_tokens <= tokens), 0)
