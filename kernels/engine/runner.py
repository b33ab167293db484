"""Executes one plan: its moves, one forward pass over prompts and decodes, and sampling."""

from typing import NamedTuple

import torch
from torch import Tensor

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.core.slots import Extent, ceil_div
from testbed.kernels.engine.drafters import Drafter, Verified
from testbed.kernels.engine.layout import Tables
from testbed.kernels.engine.network import Network, PlainAttention
from testbed.kernels.engine.on_device import Forward, eager
from testbed.kernels.engine.pool_moves import Moves
from testbed.kernels.engine.ragged import NO_DRAFTS, Ahead, Drafts, Ragged, parts_of, ragged
from testbed.kernels.engine.records import DeviceTime, Timer
from testbed.kernels.engine.sampler import Sampler, Wanted
from testbed.kernels.engine.slot_checker import NoSlotChecker
from testbed.kernels.engine.token_buffers import Drawn, Owner, Part, TokenBuffers
from testbed.sched.beam_search import Replacement
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.state import SchedulerState


class Launched(NamedTuple):
    """A forward pass that was launched on the device.

    drafts: the draft tokens of the batch. wanted: the rows whose logits are needed, and for what.
    logits: of these rows. drawn: the tokens sampled from the logits. Both are None if nothing is
    computed. recomputed: groups that are prefilled again. time: of the device.
    """

    batch: Ragged
    drafts: Drafts
    wanted: Wanted
    recomputed: dict[int, SequenceGroup]
    logits: Tensor | None
    drawn: Drawn | None
    time: DeviceTime


class Runner:
    """Everything between a plan and its results: `launch`, `wait`, `sample`, then `follow`.

    A plan may be launched before the results of the plan before it have been read, because tokens
    go from one launch to the next on the device.

    slot_checker: checks the owners of slots, or nothing. forward: computes the logits of an
    iteration's wanted rows; `eager` does so kernel by kernel. drafter: drafts tokens. verified: how
    many of these the model accepted. longest: the longest prompt of the warm-up, in tokens.
    """

    def __init__(
        self,
        state: SchedulerState,
        network: Network,
        attention: PlainAttention,
        moves: Moves,
        sampler: Sampler,
        timer: Timer,
        longest: int = 1,
    ) -> None:
        self.state = state
        self.network = network
        self.attention = attention
        self.moves = moves
        self.sampler = sampler
        self.timer = timer
        self.slot_checker = NoSlotChecker()
        self.drafter = Drafter()
        self.verified = Verified()
        self.token_buffers: TokenBuffers = sampler.token_buffers
        self.tables = Tables(state.memory, moves.layout)
        self.eager: Forward = eager(network, attention, timer.launched)
        self.forward: Forward = self.eager
        self.longest = longest // moves.layout.block_size * moves.layout.block_size
        self._late: dict[int, SequenceGroup] = {}
        self._ahead: Ahead | None = None
        self._under_way: Drawn | None = None

    def launch(self, plan: Plan) -> Launched:
        """Launch a plan's moves and its forward pass; the device works on when this returns."""
        device_time = self.timer.launch()
        self.prepare(plan)
        drafts = self.drafter.draft(plan)
        batch, owners = self.batch(plan, self.stepping(plan), drafts)
        logits = drawn = None
        if batch.parts:
            self.slot_checker.before(batch)
            logits = self.forward(batch)
        wanted = Wanted(owners, self.sampler)  # the device works on
        if logits is not None:
            with torch.inference_mode():
                drawn = self.sampler.draw(logits, wanted)
        self._under_way = drawn
        device_time.end()
        self._ahead = None if drafts else Ahead(batch, owners)
        recomputed = {
            chunk.group.request_id: chunk.group
            for chunk in plan.chunks
            if chunk.last and chunk.group.num_generated
        }
        return Launched(batch, drafts, wanted, recomputed, logits, drawn, device_time)

    def wait(self, launched: Launched) -> None:
        """Wait until the device has done the work."""
        with self.timer.waiting():
            launched.time.wait()

    def sample(self, launched: Launched) -> dict[int, tuple[Replacement, ...]]:
        """Append the sampled tokens of what the device has done; returns the parents of each beam
        request that took a step.
        """
        parents: dict[int, tuple[Replacement, ...]] = {}
        if launched.logits is not None and launched.drawn is not None:
            self.slot_checker.after(launched.batch, launched.logits)
            if launched.drafts:
                self.verified.counts = self.sampler.verify(launched.drawn, launched.drafts)
            else:
                self.sampler.keep(launched.drawn)
            if self._under_way is launched.drawn:
                self._under_way = None
            parents = self.sampler.search(launched.logits, launched.wanted)
        self._late = {
            request_id: g for request_id, g in launched.recomputed.items() if request_id in parents
        }
        return parents

    def batch(
        self, plan: Plan, groups: list[SequenceGroup], drafts: Drafts = NO_DRAFTS
    ) -> tuple[Ragged, list[Owner]]:
        """The arrays of a plan, and the sequence of each row of the logits; decodes that go on are
        prepared already.
        """
        buffers, tables, under_way = self.token_buffers, self.tables, self._under_way
        if self._ahead and len(groups) == plan.decode_seqs and not plan.chunks:
            ready = self._ahead.batch(groups, buffers, tables, under_way)
            if ready is not None:
                return ready, [Owner(group, 0) for group in groups]
        prompts, decodes, owners = parts_of(plan, groups, self.state, drafts)
        return ragged(prompts, decodes, buffers, tables, under_way), owners

    def follow(self, outcome: Outcome, results: Results) -> None:
        """Called after the plan was committed."""
        for request_id, group in self._late.items():
            # The scheduler requests no parents at the end of prefill; after recompute a beam has
            # some.
            if request_id not in results.ended:
                self.state.choose_parents(group, results.parents[request_id])
        for group in outcome.finished:
            self.drafter.end(group)
            self.tables.end(group.sequences)
        self.slot_checker.released()

    def prepare(self, plan: Plan) -> None:
        """Perform the plan's moves in order."""
        self.slot_checker.planned(plan)
        for ops in plan.ops:
            if ops.copies or ops.moves:
                self.timer.launched()
            self.moves.perform(ops)
            self.drafter.perform(ops)
        if plan.ops:
            self.moves.begin([transfer for ops in plan.ops for transfer in ops.background])

    def take_landed(self) -> list[int]:
        """The transfers that have ended since the last call."""
        landed = self.moves.ended()
        for move_id in landed:
            self.moves.land(move_id)
            self.slot_checker.landed(move_id)
        return landed

    def forget(self, group: SequenceGroup) -> None:
        """The group has left without its whole output."""
        self.tables.end(group.sequences)
        self.sampler.end(group)
        self.drafter.end(group)
        self.slot_checker.released()

    def stepping(self, plan: Plan) -> list[SequenceGroup]:
        """The groups that take a decode step: the batch, and swapped-in groups with slots for a
        step.
        """
        batch = self.state.batch
        running = self.state.running.values() if plan.decode_seqs else ()
        groups = [group for group in running if group.sequences[0].batch is batch]
        return groups + plan.stepping

    def register_prefix(self, num_tokens: int) -> None:
        """Compute the registered prefix, which the policy has pinned."""
        table, tokens = (
            self.state.memory.non_sequence_slots().pinned,
            self.token_buffers.registered_prefix(num_tokens),
        )
        part = self._prompt(-1, tokens, list(table), written=0, name="the registered prefix")
        batch = ragged([part], [], self.token_buffers, self.tables)
        self.slot_checker.before(batch)
        self.slot_checker.after(batch, self.eager(batch))
        self.drafter.store(batch)
        del self.token_buffers.tokens[-1]

    def warm(self, num_tokens: int) -> None:
        """Run a batch of prompts of num_tokens tokens that writes nothing, to load kernels and
        matrix products.
        """
        longest, size = min(num_tokens, self.longest), self.tables.layout.block_size
        lengths = [longest] * (num_tokens // longest) + [num_tokens % longest] * bool(
            num_tokens % longest
        )
        parts = [
            self._prompt(-2 - i, [0] * n, [Extent(0, ceil_div(n, size) * size)], n, "an idle batch")
            for i, n in enumerate(lengths)
        ]
        batch = ragged(parts, [], self.token_buffers, self.tables)
        self.eager(batch).argmax(dim=1).tolist()
        self.drafter.store(batch)
        for part in parts:
            del self.token_buffers.tokens[part.seq.seq_id]
        self.tables.end(part.seq for part in parts)

    def _prompt(
        self, seq_id: int, tokens: list[int], table: list[Extent], written: int, name: str
    ) -> Part:
        """A prompt of no request, whose first `written` tokens are stored already."""
        seq = Sequence(seq_id, Incoming(seq_id, 0, len(tokens)))
        self.token_buffers.tokens[seq_id] = tokens
        self.tables.put(seq, self.tables.layout.place(table, name))
        return Part(seq=seq, new=len(tokens), num_stored=0, written=written, wanted=1)
