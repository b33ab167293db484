"""What a scheduler hands to an engine, and what it gets back."""

from dataclasses import dataclass, field
from typing import NamedTuple

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import NO_GROWTH, Growth, Ops
from testbed.cost.model import Work


class Chunk(NamedTuple):
    """`new` tokens of one of a group's sequences behind `stored` ones; `last` completes the group's prompt phase.

    padding tokens are computed and thrown away.
    """

    group: SequenceGroup
    new: int
    stored: int
    last: bool
    padding: int = 0


@dataclass(slots=True)
class Plan:
    """One iteration, and how often it may be repeated.

    decode_seqs sequences take a step and read decode_context tokens, padding included; those of resumed groups, which
    come back from the host, are among them where there is room for it. horizon is how many further identical steps the
    policy has promised; while `open`, an arrival would end them. rejected groups could never run.
    """

    decode_seqs: int = 0
    decode_context: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    ops: list[Ops] = field(default_factory=list)
    resumed: list[SequenceGroup] = field(default_factory=list)
    preempted: list[SequenceGroup] = field(default_factory=list)
    rejected: list[SequenceGroup] = field(default_factory=list)
    horizon: int = 0
    open: bool = False

    def __bool__(self) -> bool:
        return bool(self.decode_seqs or self.chunks or self.resumed)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is computed so far."""
        return not (self.decode_seqs or self.chunks)

    @property
    def repeats(self) -> bool:
        """Whether the iteration is a plain decode step, which may be priced as one of many."""
        return bool(self.decode_seqs) and not (self.chunks or self.ops or self.resumed)


class Outcome(NamedTuple):
    """What an iteration brought: groups that have their first token, groups that are done, room taken meanwhile."""

    first_tokens: list[SequenceGroup]
    finished: list[SequenceGroup]
    growth: Growth = NO_GROWTH


def work_of(plan: Plan, block_size: int, repeated: int, num_requests: int) -> Work:
    """The counts by which a plan is priced.

    block_size is that of its swapped blocks; repeated counts shared slots, num_requests resident requests.
    """
    repeated = min(repeated, plan.decode_context)
    prefill = tuple([(chunk.new + chunk.padding, chunk.stored) for chunk in plan.chunks])
    if not plan.ops:
        return Work(plan.decode_seqs, plan.decode_context, prefill, repeated, num_requests)
    copies = [copy for ops in plan.ops for copy in ops.copies]
    return Work(
        decode_seqs=plan.decode_seqs,
        decode_context=plan.decode_context,
        decode_repeated=repeated,
        prefill=prefill,
        num_requests=num_requests,
        copies=len(copies),
        copied_tokens=sum(copy.length for copy in copies),
        swapped_out=sum(len(ops.swap_out) for ops in plan.ops),
        swapped_in=sum(len(ops.swap_in) for ops in plan.ops),
        block_size=block_size,
    )
