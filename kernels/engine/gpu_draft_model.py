"""A smaller model drafts on the same device, with K and V of its own in the same slots."""

import torch

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Ops
from testbed.kernels.engine.drafters import Drafter
from testbed.kernels.engine.graphs import Captures
from testbed.kernels.engine.layout import Tables
from testbed.kernels.engine.on_device import Forward, Graphs, OnDevice, eager, with_graphs
from testbed.kernels.engine.ragged import Drafts, Ragged, chunk_part, ragged
from testbed.kernels.engine.records import Timer
from testbed.kernels.engine.slot_checker import NoSlotChecker, SlotChecker
from testbed.kernels.engine.token_buffers import Part, TokenBuffers
from testbed.sched.plan import Draft, Plan


class ModelDrafter(Drafter):
    """Draft tokens are the drafter's most likely ones, a pass for each.

    Each launch stores the drafter's K and V of all tokens that the model computes and that are
    known, in its first pass: also of prompts, whose slots another request may find. A pass for a
    draft token stores the token before. `_num_stored`: tokens of a sequence that have been stored,
    of which the last may have been rejected.

    The host waits for each pass: graphs have buffers on the host for NUM_IN_FLIGHT launches, which
    a third would overwrite while those of the first are copied.
    """

    def __init__(
        self,
        device: OnDevice,
        token_buffers: TokenBuffers,
        tables: Tables,
        timer: Timer,
    ) -> None:
        self.device = device
        self.token_buffers = token_buffers
        self.tables = tables
        self.slot_checker = NoSlotChecker()
        self.timer = timer
        self.eager: Forward = eager(device.network, device.attention, timer.launched)
        self.forward: Forward = self.eager
        self._num_stored: dict[int, int] = {}

    def draft(self, plan: Plan) -> Drafts:
        drafts: dict[int, tuple[int, ...]] = {draft.seq.seq_id: () for draft in plan.drafts}
        if plan.chunks or plan.drafts:
            drafts |= self._choose(self._first(plan), drafts)
        most = max((draft.num_drafts for draft in plan.drafts), default=0)
        for number in range(1, most):
            going = [draft for draft in plan.drafts if draft.num_drafts > number]
            drafts |= self._choose(self._next(going, drafts), drafts)
        for draft in plan.drafts:
            seq = draft.seq
            self._num_stored[seq.seq_id] = seq.num_stored + max(1, draft.num_drafts)
        return drafts

    def perform(self, ops: Ops) -> None:
        self.device.moves.perform(ops)

    def store(self, batch: Ragged) -> None:
        self.eager(batch)

    def end(self, group: SequenceGroup) -> None:
        for seq in group.sequences:
            self._num_stored.pop(seq.seq_id, None)

    def capture(self, graphs: Graphs, captures: Captures) -> None:
        parts = self.device.network, self.device.attention, graphs, captures
        self.forward = with_graphs(*parts, self.eager, self.timer.launched)

    def followed_by(self, checker: SlotChecker) -> None:
        self.slot_checker = checker
        checker.follow(self.device.pools)

    def _first(self, plan: Plan) -> Ragged:
        """The prompts of a plan; and of each draft the tokens that are not stored yet: the newest,
        and the one before if all drafts were accepted. Decodes without drafts come last.
        """
        for chunk in plan.chunks:
            self._num_stored[chunk.seq.seq_id] = chunk.num_stored + chunk.new
        prompts = [chunk_part(chunk, 0) for chunk in plan.chunks]
        draft_parts = [self._known(draft) for draft in plan.drafts]
        prompts += [part for part in draft_parts if part.new > 1]
        decodes = sorted((p for p in draft_parts if p.new == 1), key=lambda part: not part.wanted)
        return ragged(prompts, decodes, self.token_buffers, self.tables)

    def _known(self, draft: Draft) -> Part:
        seq = draft.seq
        first = min(self._num_stored[seq.seq_id], seq.num_stored)
        return Part(
            seq=seq,
            new=seq.num_stored + 1 - first,
            num_stored=first,
            written=first,
            wanted=int(draft.num_drafts > 0),
        )

    def _next(self, going: list[Draft], drafts: Drafts) -> Ragged:
        """The newest draft token of each."""
        parts = []
        for draft in going:
            tokens = drafts[draft.seq.seq_id]
            at = draft.seq.num_stored + len(tokens)
            parts.append(
                Part(seq=draft.seq, new=1, num_stored=at, written=at, wanted=1, drafts=tokens)
            )
        return ragged([], parts, self.token_buffers, self.tables)

    def _choose(self, batch: Ragged, drafts: Drafts) -> Drafts:
        """The drafts with one token more of each part whose logits are needed. A graph of decodes
        has logits of those too that come last and need none.
        """
        takers = [part.seq.seq_id for part in batch.parts if part.wanted]
        logits = self.forward(batch)[: len(takers)]
        self.slot_checker.after(batch, logits)
        with torch.inference_mode(), self.timer.waiting():
            tokens = logits.argmax(dim=1).tolist()
        pairs = zip(takers, tokens, strict=True)
        return {seq_id: (*drafts[seq_id], token) for seq_id, token in pairs}
