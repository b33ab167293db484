"""What a scheduler hands to an engine, and what it gets back."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from testbed.core.errors import PlugInError
from testbed.core.records import record
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.core.slots import GRANTED, Grant, Ops
from testbed.cost.model import Moved, Work
from testbed.sched.beams import Replacement

Summed: TypeAlias = tuple[tuple[tuple[int, int], ...], tuple[Moved, ...], tuple[tuple[str, int], ...]]


class Chunk(NamedTuple):
    """`new` tokens of a group's sequence `seq` behind `stored` ones; `last` completes the group's prompt phase.

    padding tokens are computed and thrown away.
    """

    group: SequenceGroup
    seq: Sequence
    new: int
    stored: int
    last: bool
    padding: int = 0


class Plan:
    """One iteration, and how often it may be repeated.

    decode_seqs sequences take a step and read decode_context tokens, the longest of them decode_longest, padding
    included; those of resumed groups, which come back from the host, are among them where there is room for it.
    horizon is how many further identical steps the policy has promised; while `open`, an arrival would end them.
    rejected groups could never run. forks sequences were made from others since the plan before. short says that groups
    which have ended had to give their room back before their results were in, as if they were preempted.
    """

    __slots__ = (
        "chunks",
        "decode_context",
        "decode_longest",
        "decode_seqs",
        "forks",
        "horizon",
        "open",
        "ops",
        "preempted",
        "rejected",
        "resumed",
        "short",
    )

    def __init__(self) -> None:
        self.decode_seqs = self.decode_context = self.decode_longest = self.horizon = self.forks = 0
        self.open = self.short = False
        self.chunks: list[Chunk] = []
        self.ops: list[Ops] = []
        self.resumed: list[SequenceGroup] = []
        self.preempted: list[SequenceGroup] = []
        self.rejected: list[SequenceGroup] = []

    def __bool__(self) -> bool:
        return bool(self.decode_seqs or self.chunks or self.resumed)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is computed so far."""
        return not (self.decode_seqs or self.chunks)

    @property
    def took_room(self) -> bool:
        """Whether room had to be taken back: nobody is let in by this plan."""
        return self.short or bool(self.preempted)

    @property
    def repeats(self) -> bool:
        """Whether the iteration is a plain decode step, which may be priced as one of many."""
        return bool(self.decode_seqs) and not (self.chunks or self.ops or self.resumed or self.forks)


class Results(NamedTuple):
    """What the model said in the iterations of a plan; an engine knows it only when they have run.

    ended: the requests that have their whole output now, in order. parents: of each beam request that took a step, the
    candidates that did not survive, as (parent, child).
    """

    ended: tuple[int, ...] = ()
    parents: Mapping[int, tuple[Replacement, ...]] = {}


class Outcome(NamedTuple):
    """What an iteration brought: groups that have their first token, groups that are done, how the batch grew."""

    first_tokens: list[SequenceGroup]
    finished: list[SequenceGroup]
    grown: Grant = GRANTED


NOTHING: Summed = ((), (), ())


def work_of(plan: Plan, repeated: int, num_requests: int) -> Work:
    """The counts by which a plan is priced; repeated counts shared slots, num_requests resident requests."""
    context = plan.decode_context
    repeated = min(repeated, context) if repeated else 0
    prefill = tuple([(chunk.new + chunk.padding, chunk.stored) for chunk in plan.chunks]) if plan.chunks else ()
    copies, moves, extra = summed(plan.ops) if plan.ops else NOTHING
    decodes = plan.decode_seqs, context, plan.decode_longest, repeated
    return record(Work, (*decodes, prefill, num_requests, copies, moves, extra, plan.forks))


def summed(ops: list[Ops]) -> Summed:
    """Copies by length, moves by tiers and length, and what policies count by name; each kind in order."""
    copies, moves, extra = dict[int, int](), dict[tuple[str, str, int], int](), dict[str, int]()
    for one in ops:
        for copy in one.copies:
            copies[copy.length] = copies.get(copy.length, 0) + 1
        for move in one.moves:
            for copy in move.copies:
                key = move.source, move.target, copy.length
                moves[key] = moves.get(key, 0) + 1
        for name, count in one.extra:
            extra[name] = extra.get(name, 0) + count
    if min((*copies, *(key[-1] for key in moves), *(count + 1 for count in extra.values())), default=1) < 1:
        raise PlugInError(f"a policy's ops copy, move or count less than nothing: {copies}, {moves}, {extra}")
    moved = tuple(Moved(*key, count) for key, count in sorted(moves.items()))
    return tuple(sorted(copies.items())), moved, tuple(sorted(extra.items()))
