"""Plans that a scheduler hands to an engine, their results, and the errors of a plug-in's answer
that is no plan.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from testbed.core.errors import PlugInError
from testbed.core.sequence import CANCELLED, FINISHED, Batch, Sequence, SequenceGroup
from testbed.core.slots import Answer, Grant, Move, Ops, Refusal, record
from testbed.cost.model import UNBOUNDED, Moved, WindowReads, Work, counted
from testbed.memory.policy import MemoryPolicy
from testbed.sched.beam_search import Replacement

Summed: TypeAlias = tuple[
    tuple[tuple[int, int], ...], tuple[Moved, ...], tuple[tuple[str, int], ...]
]
NOTHING: Summed = ((), (), ())
LENGTH = attrgetter("length")


class Chunk(NamedTuple):
    """`new` tokens of a group's sequence `seq` behind `num_stored` ones; `last` completes the
    group's prefill.

    padding tokens are computed and discarded.
    """

    group: SequenceGroup
    seq: Sequence
    new: int
    num_stored: int
    last: bool
    padding: int = 0


class Draft(NamedTuple):
    """A group's only sequence computes its newest token and num_drafts draft tokens behind it, of
    which the first ones are kept as the model would have generated itself.

    When the iteration begins, `seq` stores all tokens but these; or the group has ended since the
    plan was made ahead, and what is computed for it is discarded.
    """

    group: SequenceGroup
    seq: Sequence
    num_drafts: int

    @property
    def context(self) -> int:
        """Tokens that the iteration reads, its own included."""
        group = self.group  # in no batch
        return group.request.prompt_len + group.generated_offset + self.num_drafts

    @property
    def is_over(self) -> bool:
        """True if the group has ended before the iteration."""
        return self.group.status in (FINISHED, CANCELLED)


class Plan:
    """One iteration, and how often it may be repeated.

    Attributes:
        decode_seqs: sequences that take a step; those of swapped_in groups are among them if
            they have a slot for the next token.
        decode_context: tokens that they read in all, padding included.
        decode_max_context: tokens that the longest of them reads.
        drafts: the decodes of a scheduler that speculates, which are no part of decode_seqs; such a
            plan is never repeated.
        chunks: prompts, or parts of them, that are computed.
        ops: copies and moves of the policy.
        preempted: groups that lose their slots, or go to the host.
        swapped_in: groups that come back from the host.
        rejected: groups that could never run.
        reasons: why, by request id.
        promised_steps: steps, this one included, that the policy promised before it; None: it was
            not asked, because the plan may do more than decode.
        guaranteed_steps: further identical steps that the policy has promised.
        ends_on_arrival: an arrival ends these steps.
        forks: sequences forked from others since the plan before.
        wake_ps: the scheduler wants to plan again at the first iteration boundary at or after this
            time, also if nothing runs; UNBOUNDED: for no such reason.
    """

    __slots__ = (
        "chunks",
        "decode_context",
        "decode_max_context",
        "decode_seqs",
        "drafts",
        "ends_on_arrival",
        "forks",
        "guaranteed_steps",
        "ops",
        "preempted",
        "promised_steps",
        "reasons",
        "rejected",
        "swapped_in",
        "wake_ps",
    )

    def __init__(self) -> None:
        self.decode_seqs = 0
        self.decode_context = 0
        self.decode_max_context = 0
        self.promised_steps: int | None = None
        self.guaranteed_steps = 0
        self.forks = 0
        self.ends_on_arrival = False
        self.wake_ps = UNBOUNDED
        self.chunks: list[Chunk] = []
        self.drafts: list[Draft] = []
        self.ops: list[Ops] = []
        self.swapped_in: list[SequenceGroup] = []
        self.preempted: list[SequenceGroup] = []
        self.rejected: list[SequenceGroup] = []
        self.reasons: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self.decode_seqs or self.chunks or self.drafts or self.swapped_in) or any(
            ops.copies or ops.moves for ops in self.ops
        )

    def reject(self, group: SequenceGroup, reason: str) -> None:
        """The group could never run, for this reason."""
        self.rejected.append(group)
        self.reasons[group.request_id] = reason

    @property
    def is_idle(self) -> bool:
        """True if nothing is computed so far."""
        return not (self.decode_seqs or self.chunks or self.drafts)

    @property
    def preempted_any(self) -> bool:
        """True if a group was preempted: this plan admits no request."""
        return bool(self.preempted)

    def leave_out(self, group: SequenceGroup) -> None:
        """The group is cancelled before this plan, which is in flight, has begun: it computes no
        prompt of it, nor drafts. A decode step that was planned for it runs, and its token is
        discarded.
        """
        self.drafts = [draft for draft in self.drafts if draft.group is not group]
        self.chunks = [chunk for chunk in self.chunks if chunk.group is not group]
        self.swapped_in = [other for other in self.swapped_in if other is not group]

    @property
    def stepping(self) -> list[SequenceGroup]:
        """The swapped-in groups that take a step: they have a slot for their next token."""
        return [
            group
            for group in self.swapped_in
            if group.sequences[0].num_slots > group.sequences[0].num_stored
        ]

    @property
    def repeats(self) -> bool:
        """True if the iteration is a plain decode step, whose cost may be computed as one of
        many.
        """
        return bool(self.decode_seqs) and not (
            self.chunks or self.ops or self.swapped_in or self.forks
        )


class Results(NamedTuple):
    """The tokens that the model generated in the iterations of a plan; an engine knows it only when
    they have run.

    ended: the requests that have their whole output now, in order. parents: of beam requests that
    took a step, in order of joining, the candidates that did not survive, as (parent, child); all
    survive of a request that it leaves out. accepted: of each
    request with drafts, how many of them became output tokens, besides the one that the model
    generates itself. found: of requests with a new token, how many draft tokens there are behind
    it, if the engine has looked for them already: the next plan has no more.
    """

    ended: tuple[int, ...] = ()
    parents: Mapping[int, tuple[Replacement, ...]] = {}
    accepted: Mapping[int, int] = {}
    found: Mapping[int, int] = {}


class Outcome(NamedTuple):
    """The outcome of an iteration: groups that have their first token, groups that are done, how
    the batch grew.
    """

    first_tokens: list[SequenceGroup]
    finished: list[SequenceGroup]
    grown: Grant


def work_of(plan: Plan, repeated: int, num_requests: int) -> Work:
    """The counts from which a plan's cost is computed. repeated: Work.decode_repeated, which
    `repeated_reads` of the policy gives; num_requests: the running requests.
    """
    context = plan.decode_context
    prefill = tuple([(chunk.new + chunk.padding, chunk.num_stored) for chunk in plan.chunks])
    copies, moves, extra = summed(plan.ops) if plan.ops else NOTHING
    decodes, longest, forks = plan.decode_seqs, plan.decode_max_context, plan.forks
    draft_tokens = 0
    if plan.drafts:
        contexts = [draft.context for draft in plan.drafts]
        decodes, context, longest = len(contexts), sum(contexts), max(contexts)
        draft_tokens = sum([draft.num_drafts for draft in plan.drafts])
    return record(
        Work,
        (
            decodes,
            context,
            longest,
            repeated,
            prefill,
            num_requests,
            copies,
            moves,
            extra,
            forks,
            (),
            draft_tokens,
        ),
    )


def decoding(plan: Plan, batch: Batch) -> tuple[Batch, list[Sequence]]:
    """The groups that decode in a plan: the batch, an empty one if it takes no step, and those
    just swapped in or with drafts.
    """
    if not (plan.swapped_in or plan.drafts):
        return batch if plan.decode_seqs else Batch(), []
    back = [seq for group in plan.stepping for seq in group.sequences]
    if plan.drafts:
        return Batch(), [draft.seq for draft in plan.drafts if not draft.is_over]
    return batch if plan.decode_seqs > len(back) else Batch(), back


def windows_of(plan: Plan, batch: Batch, sizes: tuple[int, ...]) -> tuple[WindowReads, ...]:
    """Reads of the decodes of a plan, for each size of window."""
    stepping, others = decoding(plan, batch)
    members = [seq.num_slots for seq in stepping]
    back = [draft.context for draft in plan.drafts] or [seq.num_slots for seq in others]
    windows = []
    for size in sizes:
        growing = [length for length in members if length < size]
        steps = size - max(growing) + 1 if growing else UNBOUNDED if members else 1
        tokens = sum([min(length, size) for length in (*members, *back)])
        windows.append(WindowReads(size, tokens, len(growing), steps))
    return tuple(windows)


def summed(ops: list[Ops]) -> Summed:
    """Copies by length, moves by tiers and length, and what policies count by name; each kind in
    order.
    """
    lengths: list[int] = []
    extra: dict[str, int] = {}
    moved: list[Move] = []
    for requested in ops:
        lengths += map(LENGTH, requested.copies)
        moved += requested.moves
        for name, count in requested.extra:
            extra[name] = extra.get(name, 0) + count
    moves = counted(moved) if moved else ()
    different = sorted(set(lengths))
    if moves or extra or (lengths and different[0] < 1):
        _check_summed(lengths, moves, extra)
    copies = tuple(zip(different, map(lengths.count, different), strict=True))
    return copies, moves, tuple(sorted(extra.items()))


def _check_summed(copies: Iterable[int], moves: Iterable[Moved], extra: Mapping[str, int]) -> None:
    """Raises PlugInError for a copy or a move of no slot, and for a count below 0."""
    wrong = [
        *[f"copy {length} slots" for length in copies if length < 1],
        *[
            f"move {move.length} slots from {move.source} to {move.target}"
            for move in moves
            if move.length < 1
        ],
        *[f"count {count} {name}" for name, count in extra.items() if count < 0],
    ]
    if wrong:
        raise PlugInError(f"a policy's ops {wrong[0]}: less than nothing")


def one_answer(policy: MemoryPolicy, answer: object) -> Answer:
    if not isinstance(answer, (Grant, Refusal)):
        raise wrong_answer(policy, answer, "it gives a Grant or a Refusal")
    return answer


def broken_promise(policy: MemoryPolicy, steps: int, answer: object) -> PlugInError:
    """The answer to an extend by guaranteed steps is no grant, or needs ops."""
    name, answered = type(policy).__name__, one_answer(policy, answer)
    return PlugInError(
        f"{name} promised {steps} more steps by guaranteed_steps() and then answered {answered}"
    )


def plain_int(plug_in: object, name: str, answer: object) -> int:
    """The answer, if its type is int itself: a subclass could learn the output lengths by
    overloading comparisons.
    """
    if type(answer) is not int:
        raise wrong_answer(plug_in, answer, f"{name} is a whole number, of the type int itself")
    return answer


def wrong_answer(plug_in: object, answer: object, expected: str) -> PlugInError:
    """The error of a plug-in that gave this answer; expected: what it should be, as a sentence."""
    return PlugInError(f"{type(plug_in).__name__} answered {answer!r}; {expected}")
