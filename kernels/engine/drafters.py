"""Drafters of the engine, and counts of the tokens that the model accepted."""

from collections.abc import Iterable, Mapping

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Ops
from testbed.kernels.engine.graphs import Captures
from testbed.kernels.engine.on_device import Graphs
from testbed.kernels.engine.ragged import NO_DRAFTS, Drafts, Ragged
from testbed.kernels.engine.slot_checker import SlotChecker
from testbed.kernels.engine.token_buffers import TokenBuffers
from testbed.sched.plan import Plan
from testbed.speculation.acceptance import Acceptance


class Drafter:
    """Drafts nothing, for schedulers that plan no drafts.

    The engine calls `found` when an iteration has brought tokens, and `draft` when it launches the
    plan with these drafts, or fewer.
    """

    def found(self, groups: Iterable[SequenceGroup]) -> Mapping[int, int]:
        """The number of draft tokens behind the newest token of these groups, by request id;
        of a group that is left out, as many as are asked for.
        """
        return {}

    def draft(self, plan: Plan) -> Drafts:
        """The draft tokens of a plan, by sequence id: as many as it says."""
        return NO_DRAFTS

    def perform(self, ops: Ops) -> None:
        """The policy copies slots."""

    def store(self, batch: Ragged) -> None:
        """The model has computed this batch of no request."""

    def end(self, group: SequenceGroup) -> None:
        """The group has left for good."""

    def capture(self, graphs: Graphs, captures: Captures) -> None:
        """Capture what is launched as graphs; captures: has them until it is released."""

    def followed_by(self, checker: SlotChecker) -> None:
        """The checker follows each slot, in the drafter's pools too."""


class NGramDrafter(Drafter):
    """The longest of the last lookup_min to lookup_max tokens that have come before in their
    sequence: what followed them at the first place is the draft, of max_drafts tokens at most.

    Every run of tokens is noted once, when the token behind it is known.
    """

    def __init__(
        self, token_buffers: TokenBuffers, lookup_min: int, lookup_max: int, max_drafts: int
    ) -> None:
        self.token_buffers = token_buffers
        self.sizes = range(lookup_max, lookup_min - 1, -1)
        self.max_drafts = max_drafts
        self._places: dict[int, dict[tuple[int, ...], int]] = {}  # by sequence: what follows a run
        self._num_noted: dict[int, int] = {}
        self._drafts: dict[int, tuple[int, ...]] = {}

    def found(self, groups: Iterable[SequenceGroup]) -> Mapping[int, int]:
        found = dict[int, int]()
        for group in groups:
            seq_id = group.sequences[0].seq_id
            self._note(seq_id)
            self._drafts[seq_id] = drafts = self._look_up(seq_id)
            found[group.request_id] = len(drafts)
        return found

    def draft(self, plan: Plan) -> Drafts:
        drafts = [(draft.seq.seq_id, draft.num_drafts) for draft in plan.drafts]
        return {seq_id: self._drafts.pop(seq_id)[:number] for seq_id, number in drafts}

    def end(self, group: SequenceGroup) -> None:
        for seq in group.sequences:
            for kept in (self._places, self._num_noted, self._drafts):
                kept.pop(seq.seq_id, None)

    def _note(self, seq_id: int) -> None:
        """Note the runs that end before each token that is new."""
        tokens = self.token_buffers.tokens[seq_id]
        places = self._places.setdefault(seq_id, {})
        for at in range(self._num_noted.get(seq_id, 1), len(tokens)):
            for size in self.sizes:
                if size <= at:
                    places.setdefault(tuple(tokens[at - size : at]), at)
        self._num_noted[seq_id] = len(tokens)

    def _look_up(self, seq_id: int) -> tuple[int, ...]:
        tokens, places = self.token_buffers.tokens[seq_id], self._places[seq_id]
        for size in self.sizes:
            at = places.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if at is not None:
                return tuple(tokens[at : at + self.max_drafts])
        return ()


class Verified(Acceptance):
    """The number of drafts accepted in the iteration that was sampled last: the first ones, which
    are what it generates itself.
    """

    def __init__(self) -> None:
        self.counts: Mapping[int, int] = {}

    def accepted(self, request_id: int, num_generated: int, num_drafts: int) -> int:
        return self.counts[request_id]
