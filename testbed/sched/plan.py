"""What a scheduler hands to an engine, and what it gets back."""

from dataclasses import dataclass, field
from typing import NamedTuple

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import NO_GROWTH, Growth, Ops
from testbed.cost.model import Work


class Chunk(NamedTuple):
    """`new` prompt tokens of a group's first sequence behind `stored` ones; `last` completes its prefill."""

    group: SequenceGroup
    new: int
    stored: int
    last: bool


@dataclass(slots=True)
class Plan:
    """One iteration, and how often it may be repeated.

    decodes says whether the whole lockstep batch takes a step; resumed groups join it afterwards. horizon is how many
    further identical steps the policy has promised. rejected groups could never run.
    """

    decodes: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    ops: list[Ops] = field(default_factory=list)
    resumed: list[SequenceGroup] = field(default_factory=list)
    preempted: list[SequenceGroup] = field(default_factory=list)
    rejected: list[SequenceGroup] = field(default_factory=list)
    horizon: int = 0

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks or self.resumed)


class Outcome(NamedTuple):
    """What an iteration brought: groups that have their first token, groups that are done, room taken meanwhile."""

    first_tokens: list[SequenceGroup]
    finished: list[SequenceGroup]
    growth: Growth = NO_GROWTH


def work_of(plan: Plan, num_seqs: int, context: int, block_size: int) -> Work:
    """The counts by which a plan is priced."""
    copies = [copy for ops in plan.ops for copy in ops.copies]
    return Work(
        decode_seqs=num_seqs if plan.decodes else 0,
        decode_context=context if plan.decodes else 0,
        prefill=tuple((chunk.new, chunk.stored) for chunk in plan.chunks),
        copies=len(copies),
        copied_tokens=sum(copy.length for copy in copies),
        swapped_out=sum(len(ops.swap_out) for ops in plan.ops),
        swapped_in=sum(len(ops.swap_in) for ops in plan.ops),
        block_size=block_size,
    )
